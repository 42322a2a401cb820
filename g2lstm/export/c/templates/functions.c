
/* ---------------------------------------------------------------------------------------------- functions

   Accurate to a few units in the last place; a NaN stays a NaN. */

/* exp(x) - 1 = power * p + (power - 1), with power = 2^n and p = exp(r) - 1 where x = n ln 2 + r. */
INLINE void exp_parts(floats x, floats *power, floats *p)
{
    x = larger(all(-87.0f), smaller(all(88.0f), x));
    const floats shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the last bit counts ones */
    const floats n = shifted - 12582912.0f;
    const floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    *power = from_bits((bits_of(shifted) + 127) << 23);
    *p = add_product(all(1.9841270e-4f), r, all(1.3888889e-3f)); /* Taylor's series */
    *p = add_product(*p, r, all(8.3333333e-3f));
    *p = add_product(*p, r, all(4.1666667e-2f));
    *p = add_product(*p, r, all(1.6666667e-1f));
    *p = add_product(*p, r, all(0.5f));
    *p = add_product(*p * r, r, r);
}
//@ sigmoid1 softmax log_softmax
INLINE float first_of(floats v)
{
    float lanes[LANES];
    store(lanes, v);
    return lanes[0];
}
//@
//@ sigmoid
INLINE floats sigmoids(floats x)
{
    floats power, p;
    exp_parts(-x, &power, &p);
    return 1.0f / (1.0f + add_product(power, p, power));
}
//@
//@ sigmoid1
INLINE float sigmoid(float x) { return first_of(sigmoids(all(x))); }
//@
//@ tanh
INLINE floats tanhs(floats x)
{
    floats power, p;
    x = larger(all(-10.0f), smaller(all(10.0f), x));
    exp_parts(x + x, &power, &p);
    const floats minus_1 = add_product(power, p, power - 1.0f);
    return minus_1 / (minus_1 + 2.0f);
}
//@
//@ softmax log_softmax

INLINE floats exps(floats x)
{
    floats power, p;
    exp_parts(x, &power, &p);
    return add_product(power, p, power);
}

/* The logarithm of the sum of the exponentials of x. */
static float log_sum(const float *x, int32_t count)
{
    float lanes[LANES], top = x[0], total = 0;
    floats most = all(x[0]), sums = all(0);
    int32_t k;
    for (k = 0; k + LANES <= count; k += LANES) most = larger(load(x + k), most);
    for (; k < count; ++k) top = x[k] > top ? x[k] : top;
    store(lanes, most);
    for (int lane = 0; lane < LANES; ++lane) top = lanes[lane] > top ? lanes[lane] : top;
    for (k = 0; k + LANES <= count; k += LANES) sums += exps(load(x + k) - top);
    for (; k < count; ++k) total += first_of(exps(all(x[k] - top)));
    store(lanes, sums);
    for (int lane = 0; lane < LANES; ++lane) total += lanes[lane];
    return top + logf(total);
}
//@
//@ log_softmax
static void log_softmax(const float *x, float *to, int32_t count)
{
    const float whole = log_sum(x, count);
    for (int32_t k = 0; k < count; ++k) to[k] = x[k] - whole;
}
//@
//@ softmax
static void softmax(const float *x, float *to, int32_t count)
{
    const float whole = log_sum(x, count);
    for (int32_t k = 0; k < count; ++k) to[k] = first_of(exps(all(x[k] - whole)));
}
//@
//@ layer_norm

/* (x - mean) / deviation * weight + bias */
static void layer_norm(const float *x, const float *weight, const float *bias, float *to, int32_t count, float epsilon)
{
    float mean = 0, square = 0;
    for (int32_t k = 0; k < count; ++k) mean += x[k];
    mean /= (float)count;
    for (int32_t k = 0; k < count; ++k) square += (x[k] - mean) * (x[k] - mean);
    const float scale = 1.0f / sqrtf(square / (float)count + epsilon);
    for (int32_t k = 0; k < count; ++k) to[k] = (x[k] - mean) * scale * weight[k] + bias[k];
}
//@
//@ argmax

/* The place of the largest number; the first of equals. */
static int32_t argmax(const float *x, int32_t count)
{
    int32_t best = 0;
    for (int32_t k = 1; k < count; ++k) best = x[k] > x[best] ? k : best;
    return best;
}
//@
