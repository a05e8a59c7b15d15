"""`arpo pretrain`. Heavy imports come inside the command."""

from pathlib import Path
from typing import Annotated

import typer

from arpo.errors import ConfigError


def pretrain(
    out: Annotated[Path, typer.Argument(help="The folder of the checkpoint.")],
    seconds: Annotated[float, typer.Option(help="How long to train.")] = 600.0,
    start: Annotated[Path | None, typer.Option(help="A checkpoint of an earlier run to go on from.")] = None,
    workers: Annotated[int, typer.Option(help="Processes that make lessons.")] = 1,
    screens: Annotated[int, typer.Option(help="Screenshots of one batch.")] = 24,
    lr: Annotated[float, typer.Option(help="The learning rate after the warm-up …")] = 1e-3,
    end_lr: Annotated[float, typer.Option(help="… and at the end.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the weights and the lessons.")] = 0,
) -> None:
    """Make a small agent that reads the pocket desktop and imitates its experts.

    Every half minute a line: the shares of words that visual tokens read, of places that it points to and of whole
    replies that are right, on instances that are never taught; every two minutes the success of whole episodes. All of
    it and more goes to metrics.jsonl.

    \b
    Examples:
      arpo pretrain runs/base --seconds 600                          on a laptop, a taste
      arpo pretrain runs/base --workers 15 --screens 192 --lr 1.5e-3      on a GPU
      arpo pretrain runs/more --start runs/base --seconds 300        goes on
    """
    from arpo.teaching.pretrain import Pretraining
    from arpo.teaching.pretrain import pretrain as run

    if seconds <= 0:
        raise ConfigError(f"seconds={seconds:g}: must be more than 0")
    run(Pretraining(out, seconds, start, workers=workers, screens=screens, lr=lr, end_lr=end_lr, seed=seed))
