import multiprocessing

import pytest

from g2lstm import G2Error
from g2lstm.runs.directory import RunDirectory


def _try_twice(path, answers, go_on):
    for _ in range(2):
        try:
            with RunDirectory(path).locked():
                answers.put("in")
        except G2Error as error:
            answers.put(str(error))
        go_on.wait()


def test_a_second_process_is_kept_out(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers, go_on = context.Queue(), context.Event()
    other = context.Process(target=_try_twice, args=(tmp_path, answers, go_on), daemon=True)
    with RunDirectory(tmp_path).locked():
        other.start()
        assert "another process is training" in answers.get(timeout=600)
    go_on.set()
    assert answers.get(timeout=600) == "in"
    other.join()


def test_a_line_that_a_crash_cut_short_costs_only_itself(tmp_path):
    run = RunDirectory(tmp_path)
    line = {"kind": "train", "tokens": 1, "seconds": 0.5}
    run.append_metrics({**line, "step": 1})
    with run.metrics_file.open("a") as file:
        file.write('{"step": 2, "lo')
    run.append_metrics({**line, "step": 3})
    assert run.metrics() == [{**line, "step": 1}, {**line, "step": 3}]


@pytest.mark.parametrize(
    "line",
    [
        b"3", b"[]", b"{}", b'{"kind": 1}', b'{"kind": "train", "step": 1, "tokens": "many", "seconds": 1}', b"\xff",
        b"[" * 100_000, b'{"kind": "train", "step": 1, "tokens": ' + b"9" * 5000 + b', "seconds": 1}',
        b'{"kind": "train", "step": 1, "tokens": ' + b"9" * 50 + b', "seconds": 1}',
    ],
)  # fmt: skip
def test_lines_that_training_never_wrote_are_left_out(tmp_path, line):
    run = RunDirectory(tmp_path)
    good = {"kind": "train", "tokens": 1, "seconds": 0.5, "step": 1}
    run.metrics_file.write_bytes(line + b"\n")
    run.append_metrics(good)
    assert run.metrics() == [good]


def test_a_score_with_the_same_signature_is_replaced(tmp_path):
    run = RunDirectory(tmp_path)
    for value, signature in ((1, "a"), (2, "b"), (3, "a")):
        run.add_result({"bleu": value, "split": "test", "eval_gate": "soft", "signature": signature})
    assert [score.bleu for score in run.results()] == [2, 3]


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", '{"scores": 3}', '{"scores": [1]}', "[" * 100_000, '{"scores": [{"signature": "a"}]}',
        '{"scores": [{"signature": "a", "split": "test", "eval_gate": "soft", "bleu": "high"}]}',
        '{"scores": [{"signature": "\\ud800", "split": "test", "eval_gate": "soft", "bleu": 1.0}]}',
    ],
)  # fmt: skip
def test_damaged_results(tmp_path, content):
    run = RunDirectory(tmp_path)
    run.result_file.write_text(content)
    with pytest.raises(G2Error, match="delete it, and evaluate again"):
        run.results()


def test_metrics_of_steps_that_were_lost_in_a_crash_are_left_out(tmp_path):
    run = RunDirectory(tmp_path)
    written = [("valid", 0), ("train", 1), ("train", 20), ("valid", 30), ("train", 40), ("train", 25), ("valid", 25)]
    for kind, step in written:
        run.append_metrics({"kind": kind, "step": step, "tokens": 1, "seconds": 1.0})
    assert [(line["kind"], line["step"]) for line in run.metrics()] == written[:3] + written[5:]
