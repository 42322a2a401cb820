import multiprocessing

import pytest

from g2lstm import G2Error
from g2lstm.runs.directory import RunDirectory


def _try(path, answers):
    try:
        with RunDirectory(path).locked():
            answers.put("in")
    except G2Error as error:
        answers.put(str(error))


def test_a_second_process_is_kept_out(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with RunDirectory(tmp_path).locked():
        other = context.Process(target=_try, args=(tmp_path, answers))
        other.start()
        assert "another process is training" in answers.get(timeout=60)
        other.join()
    other = context.Process(target=_try, args=(tmp_path, answers))
    other.start()
    assert answers.get(timeout=60) == "in"
    other.join()


def test_a_line_that_a_crash_cut_short_costs_only_itself(tmp_path):
    run = RunDirectory(tmp_path)
    run.append_metrics({"step": 1})
    with run.metrics_file.open("a") as file:
        file.write('{"step": 2, "lo')
    run.append_metrics({"step": 3})
    assert run.metrics() == [{"step": 1}, {"step": 3}]


def test_a_score_with_the_same_signature_is_replaced(tmp_path):
    run = RunDirectory(tmp_path)
    for value, signature in ((1, "a"), (2, "b"), (3, "a")):
        run.add_result({"value": value, "signature": signature})
    assert [score["value"] for score in run.results()] == [2, 3]


@pytest.mark.parametrize("content", ["{", "[]", '{"scores": 3}', '{"scores": [1]}'])
def test_damaged_results(tmp_path, content):
    run = RunDirectory(tmp_path)
    run.result_file.write_text(content)
    with pytest.raises(G2Error, match="delete it, and evaluate anew"):
        run.results()
