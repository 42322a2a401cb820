"""`g2lstm distill`: a student learns to translate from its teacher."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import Beam, DataDir, Run, Set, error_console, say, tell, usable
from g2lstm.cli.train import say_trained, train_with_bar


def distill(
    teacher: Run,
    student: Annotated[str, typer.Option(help="The student's recipe: a file, or the name of a shipped one.")],
    out: Annotated[
        Path | None, typer.Option(help="The student's run directory; TEACHER-student by default.", callback=usable)
    ] = None,
    overrides: Set = None,
    beam: Beam = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue if it has already begun.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Train a small translation model on the translations of a large one, which are easier to learn than people's.

    The teacher translates the sources that it was trained on with beam search, into the folder OUT-data. Then the
    student trains on them by its recipe, whose data they replace. Validation and test are the teacher's, with people's
    translations. Ctrl-C saves the state and exits with code 130; --resume continues from there.

    Example: `g2lstm distill runs/multi30k-small --student multi30k-small --set model.hidden=128 --out runs/student`
    """
    from g2lstm.errors import G2Error
    from g2lstm.runs.directory import RunDirectory
    from g2lstm.runs.trained import load_as
    from g2lstm.tasks.recipes import MT
    from g2lstm.training.distill import distil_text, student_recipe

    loaded, home = load_as(MT, teacher), teacher.absolute()
    out = home.with_name(f"{home.name}-student") if out is None else out
    texts = out.absolute().with_name(f"{out.absolute().name}-data")
    recipe = student_recipe(loaded, student, overrides or (), texts)
    if not resume:
        RunDirectory(out).check_new()
        if texts.exists():
            raise G2Error(f"{texts} exists; continue with --resume, or choose another --out")
    sets = [word for each in overrides or () for word in ("--set", each)]
    sets += [] if beam is None else ["--beam", str(beam)]
    again = ["distill", str(teacher), "--student", student, "--out", str(out), *sets]

    try:
        with bar() as show:

            def progress(done: int, total: int) -> None:
                show("translating", done, total)
                if not error_console().is_terminal:
                    tell(f"translating: {done:,} of {total:,} lines are done")

            files = distil_text(loaded, texts, beam=beam, data_dir=data_dir, progress=progress)
    except KeyboardInterrupt:
        folder = [] if data_dir is None else ["--data-dir", str(data_dir)]
        tell(f"interrupted; continue with: {shlex.join(['g2lstm', *again, '--resume', *folder])}")
        raise typer.Exit(130) from None
    say(f"{files.target}: the translations of {teacher}")
    del loaded  # the student needs the memory
    say_trained(out, train_with_bar(recipe, out, resume, data_dir, again))
