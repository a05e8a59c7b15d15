"""The command line: `arpo --help`. Each command only reads its arguments here and calls into the package.

Everything heavy is imported inside the commands, after the arguments are parsed, so that `--help` answers at once and
a misspelt option does not wait for numpy. What a user did wrong ends in one line and exit status 2; a promise or a
task that failed in status 1.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from arpo import __version__
from arpo.arguments import DryRunOption, JsonOption, RunDirOption, Settings, WeakerOption, configured, show
from arpo.bench.cli import app as bench_app
from arpo.bench.cli import compare
from arpo.envs.cli import app as envs_app
from arpo.errors import ArpoError, device_error, printable
from arpo.teaching.cli import pretrain

# Plain help texts: a line that holds only \b keeps the paragraph after it as it is written, as in the examples.
app = typer.Typer(
    help="""Train computer-use agents by reinforcement learning with success replay.

    \b
    First steps:
      arpo doctor                      what works on this machine
      arpo envs list                   the environments and their tasks
      arpo eval base --tasks subset32  how often the agent that comes with arpo gets its tasks done
      arpo envs play                   watch the scripted expert solve a task
    """,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(envs_app, name="envs")
app.add_typer(bench_app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"arpo {__version__}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None: ...


@app.command("eval")
def evaluate(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(help="base, a run's folder (its best), a checkpoint's, a hub name; expert, random or fail."),
    ] = None,
    settings: Settings = None,
    tasks: Annotated[str | None, typer.Option(help="A split, a task list file or one id: tasks.source.")] = None,
    trials: Annotated[int | None, typer.Option(help="How often each task is tried: eval.trials.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of sampling: eval.temperature.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of sampling: eval.top_p.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of one reply: eval.max_tokens.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Most actions of an episode: tasks.max_steps.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="plain, or one of the paper's, standard and hard: eval.protocol.")
    ] = None,
    n_envs: Annotated[int | None, typer.Option(help="Episodes at once: eval.n_envs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the screens and of sampling.")] = None,
    run_dir: RunDirOption = None,
    osworld_results: Annotated[
        Path | None, typer.Option(help="A folder for the episodes in OSWorld's layout, beside the run's.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A B", help="Play nothing: compare two runs task by task, and test the difference."),
    ] = None,
    pictures: Annotated[Path | None, typer.Option(help="A folder for pictures of a success and a failure.")] = None,
    as_json: JsonOption = False,
    allow_weaker_sandbox: WeakerOption = False,
) -> None:
    """How often an agent gets its tasks done, with a 95 % interval.

    Exit status 1 where no trial could be scored.

    \b
    Examples:
      arpo eval expert --tasks subset32                      the scripted expert: all of them
      arpo eval base --tasks subset32 --pictures demo        the agent that comes with arpo
      arpo eval runs/first --tasks heldout --trials 4        a training run's best checkpoint
      arpo eval runs/first/checkpoints/update-00012          one of its others
      arpo eval MODEL env.size=1280x800 --temperature 1.0 --json
      arpo eval MODEL --run-dir runs/mine                    killed? the same command resumes
      arpo eval MODEL --protocol hard --osworld-results out  as the paper's OSWorld Hard, in OSWorld's layout
      arpo eval --compare runs/before runs/after             which is better, and how sure that is
    """
    from arpo.errors import ConfigError

    if compare is not None:
        from arpo.evaluation.pairs import compare_runs, comparison_as_json, print_comparison

        if model is not None:
            raise ConfigError(f"{model}: --compare plays nothing; name no model beside it")
        if idle := [name for name, value in ctx.params.items() if value and name not in ("compare", "as_json")]:
            raise ConfigError(f"--{idle[0].replace('_', '-')}: --compare plays nothing; it says how runs were judged")
        found = compare_runs(*compare)
        return show(comparison_as_json(found), as_json, lambda _: print_comparison(found))
    if model is None:
        raise ConfigError("name a model, as in `arpo eval base`, or two runs, as in `arpo eval --compare A B`")
    from arpo.engines.scripted import LOOK_BEHIND
    from arpo.evaluation.command import default_folder, judge
    from arpo.evaluation.osworld_results import Results

    options = {"tasks.source": tasks, "eval.trials": trials, "eval.temperature": temperature, "eval.top_p": top_p}
    options |= {"eval.max_tokens": max_tokens, "eval.n_envs": n_envs, "tasks.max_steps": max_steps, "seed": seed}
    options |= {"eval.protocol": protocol, "env.allow_weaker_sandbox": allow_weaker_sandbox or None}
    config = configured(settings, options, instead=("env.workers=0",) if model in LOOK_BEHIND else ())
    folder = run_dir or default_folder(model, config.tasks.source)
    results = Results(osworld_results, model) if osworld_results else None
    if not judge(config, model, folder, pictures, results, as_json):
        raise typer.Exit(1)


@app.command("osworld-eval")
def osworld_eval(
    settings: Settings = None,
    headless: Annotated[bool, typer.Option("--headless", help="Changes nothing: there is no window.")] = False,
    observation_type: Annotated[str, typer.Option("--observation_type", help="Only screenshot.")] = "screenshot",
    action_space: Annotated[str, typer.Option("--action_space", help="Only pyautogui.")] = "pyautogui",
    max_steps: Annotated[int, typer.Option("--max_steps", help="Most actions of an episode.")] = 15,
    max_trajectory_length: Annotated[
        int | None,
        typer.Option("--max_trajectory_length", help="FAIL is said after so many; more than max_steps: never."),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="Of sampling.")] = 0.6,
    model: Annotated[str, typer.Option("--model", help="As the server calls it, or as in `arpo eval`.")] = "",
    num_envs: Annotated[int, typer.Option("--num_envs", help="Machines, and episodes at once.")] = 1,
    result_dir: Annotated[Path, typer.Option("--result_dir", help="In OSWorld's layout.")] = Path("results"),
    test_all_meta_path: Annotated[
        str, typer.Option("--test_all_meta_path", help="The list of tasks.")
    ] = "evaluation_examples/test_all.json",
    trial_id: Annotated[int, typer.Option("--trial-id", help="Names the folder, and is the seed.")] = 0,
    server_ip: Annotated[
        str | None, typer.Option("--server_ip", help="An OpenAI-compatible server, such as vLLM's.")
    ] = None,
    as_json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """`arpo eval` with the words of the ARPO release's evaluation script.

    Exit status 1 where no trial could be scored. The same command again resumes.

    \b
    Examples:
      arpo osworld-eval --headless --observation_type screenshot --max_steps 15 --max_trajectory_length 15 \\
        --temperature 0.6 --model ui-tars-1.5 --action_space pyautogui --num_envs 8 --result_dir results \\
        --test_all_meta_path evaluation_examples/test_all.json --trial-id 0 --server_ip http://10.1.1.3:8000
      arpo osworld-eval … --dry-run                          which settings of arpo that is
      arpo osworld-eval … env.osworld_disk=Ubuntu.qcow2      what the script has no word for
    """
    from arpo.evaluation.osworld_command import OsworldWords, run_osworld

    words = OsworldWords(
        headless=headless,
        observation_type=observation_type,
        action_space=action_space,
        max_steps=max_steps,
        max_trajectory_length=max_trajectory_length,
        temperature=temperature,
        model=model,
        num_envs=num_envs,
        result_dir=result_dir,
        test_all_meta_path=test_all_meta_path,
        trial_id=trial_id,
        server_ip=server_ip,
    )
    if not run_osworld(words, settings or [], as_json, dry_run):
        raise typer.Exit(1)


@app.command()
def select(
    model: Annotated[str, typer.Argument(help="The agent: base, a run's or a checkpoint's folder, or a hub name.")],
    out: Annotated[Path, typer.Argument(help="The task list to write, a .json file.")],
    settings: Settings = None,
    trials: Annotated[int, typer.Option(help="How often each task is tried.")] = 16,
    min_success: Annotated[int, typer.Option(help="Successes that a task needs to be kept.")] = 1,
    drop_solved: Annotated[bool, typer.Option("--drop-solved", help="Leave out tasks solved every time.")] = False,
    run_dir: RunDirOption = None,
    allow_weaker_sandbox: WeakerOption = False,
) -> None:
    """Find the tasks that an agent sometimes solves: those it can learn from.

    \b
    Examples:
      arpo select base runs/selected.json                    of the tasks of `train`
      arpo select base mine.json tasks.source=subset32 --trials 8 --drop-solved
      arpo select base mine.json env.starts=fixed            on the very screens that will be trained
      arpo train pocket tasks.source=runs/selected.json      then train on them
    """
    from arpo.evaluation import command
    from arpo.evaluation.agents import find_model
    from arpo.evaluation.run import refuse_protocol
    from arpo.tasks import select as tasks

    tasks.refuse_place(out)
    config = configured(settings, {"eval.trials": trials, "env.allow_weaker_sandbox": allow_weaker_sandbox or None})
    refuse_protocol(config.eval, "arpo select")
    # At the temperature of training: there the successes are needed.
    config = config.with_values({"eval.temperature": config.train.temperature})
    folder = run_dir or command.default_folder(model, config.tasks.source)
    evaluation = command.run_evaluation(config, find_model(model), folder)
    kept = tasks.select(evaluation, min_success, drop_solved, config.algorithm.solved)
    tasks.write_list(kept, out)
    tasks.print_counts(evaluation, kept, out, config.algorithm.solved)


@app.command()
def train(
    settings: Settings = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to resume; its limits may change.")] = None,
    from_runs: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Learn from the stored episodes of this run instead of playing; may be repeated."),
    ] = None,
    dry_run: DryRunOption = False,
    allow_weaker_sandbox: WeakerOption = False,
) -> None:
    """Make an agent better at its tasks by reinforcement learning.

    The base agent is judged, then trained, then judged again on screens that it was not trained on; with
    env.starts=fixed also on those that it was.

    With --from it plays only to be judged: it learns from the episodes of a training or of an evaluation, which are
    copied into the new run. The tasks are those of the episodes, or of them those that tasks.source=… names.

    \b
    Examples:
      arpo train                                             the agent that comes with arpo, on the embedded desktop
      arpo train pocket algorithm.name=grpo run_dir=runs/g   another method, another folder
      arpo train --resume runs/g                             killed? resume
      arpo train --resume runs/g train.updates=40            make it longer
      arpo train --from runs/g --from runs/a                 learn from what these two runs have played
      arpo train --from runs/trials seed=1                   from an evaluation, judged on other screens than it had
      arpo train --dry-run                                   every setting, what it means, what would be done
    """
    from arpo.config import to_yaml

    own = None
    if resume is None:
        weaker = {"env.allow_weaker_sandbox": allow_weaker_sandbox or None}
        instead = ("tasks.source=stored",) if from_runs else ()
        config = configured(settings, weaker, preset="pocket", instead=instead)
    else:
        from arpo.runs.settings import resumed
        from arpo.tasks.kept import own_tasks

        config = resumed(resume, [*(settings or []), *["env.allow_weaker_sandbox=true"] * allow_weaker_sandbox])
        own = own_tasks(config)
    if dry_run:
        from arpo.training.plan import plan

        print(to_yaml(config), end="")
        print(plan(config, own, from_runs or ()))
        return
    from arpo.training.command import run_training

    run_training(config, own, from_runs=from_runs or ())


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="base, a run's folder (its best), a checkpoint's, or a hub name.")],
    settings: Settings = None,
    replicas: Annotated[int, typer.Option(help="How many servers: one a GPU.")] = 1,
    port: Annotated[int, typer.Option(help="Of the first; the others have the next ones. 0: any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0: for other hosts too.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(envvar="ARPO_TOKEN", show_envvar=True, help="Every request needs it; none: a new one."),
    ] = None,
) -> None:
    """Serve a model by vLLM, for training and evaluation elsewhere.

    The servers end with this command, however it ends. One that ends or hangs is started again.

    \b
    Examples:
      arpo serve base                                        prints what the next line takes
      ARPO_TOKEN=… arpo eval base engine.name=vllm engine.servers=[http://127.0.0.1:43101]
      arpo serve runs/first --replicas 4 agent.dtype=bfloat16
    """
    from arpo.config import at_least
    from arpo.engines.vllm.command import serve_models
    from arpo.evaluation.agents import find_model

    at_least(1, replicas=replicas)
    serve_models(configured(settings, {}), find_model(model), replicas, host, port, token)


@app.command()
def view(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, also of one that is being written.")],
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0 is any that is free.")] = 8520,
    bundle: Annotated[Path | None, typer.Option(help="Do not serve: write the pages into this folder.")] = None,
) -> None:
    """Look at runs in a browser: curves, tasks, every step of every episode. Until Ctrl-C.

    \b
    Examples:
      arpo view runs/first                                   also while it trains: the page follows
      arpo view runs/arpo runs/grpo --port 0                 two runs beside each other
      arpo view runs/first --bundle site                     files for any web server
    """
    if bundle is None:
        from arpo.viewer.serve import view as serve_view

        return serve_view(runs, port)
    from arpo.viewer.static import write_bundle

    write_bundle(runs, bundle)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")],
) -> None:
    """One HTML file to send to somebody: curves, tables, the best and the worst episodes.

    \b
    Examples:
      arpo report runs/first -o first.html
      arpo report runs/arpo runs/grpo -o comparison.html
    """
    from arpo.viewer.static import write_report

    write_report(runs, out)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's folder; with --checkpoint also one of its checkpoints.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write: a new one, or an empty one.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="The agent in place of the episodes: of a run its best checkpoint.")
    ] = False,
    solved: Annotated[bool, typer.Option("--solved", help="Only episodes that solved their task.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="Who played, where the run does not tell: a checkpoint's folder or a hub name. Of --share: base."
        ),
    ] = None,
    share: Annotated[
        float, typer.Option(help="Of an agent: so much of the way to it from --model, with which its training began.")
    ] = 1.0,
) -> None:
    """Write a run's episodes or its agent for other programs.

    Episodes: Parquet, which `datasets.load_dataset(DIR)` reads, with messages and images as TRL takes them. An agent: a
    folder that transformers and vLLM load. Each with a card that says what it is. Needs pip install 'arpo[export]' for
    episodes.

    \b
    Examples:
      arpo export runs/first episodes                        every episode
      arpo export runs/first solved --solved                 what to fine-tune on
      arpo export runs/trials episodes --model owner/name    an evaluation of a model from the hub
      arpo export runs/first agent --checkpoint              its best checkpoint
      arpo export runs/first/checkpoints/update-00012 agent --checkpoint
      arpo export runs/first agent --checkpoint --share 0.5  less was learned, and less forgotten
    """
    from arpo.errors import ConfigError
    from arpo.export.command import export_checkpoint, export_episodes

    if not checkpoint:
        if share != 1.0:
            raise ConfigError("--share: is of an agent; add --checkpoint")
        return export_episodes(run, folder, solved, model)
    if solved or (model is not None and share == 1.0):
        raise ConfigError("--checkpoint: takes no --solved, which is about episodes, and --model only with --share")
    export_checkpoint(run, folder, share, model or "base")


app.command()(compare)
app.command()(pretrain)


@app.command()
def doctor(
    settings: Settings = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="On every node of the Ray cluster env.ray: auto.")] = False,
) -> None:
    """What works on this machine.

    And for each part that is missing the one command that enables it.

    \b
    Examples:
      arpo doctor
      arpo doctor --cluster osworld-full            the cluster of this machine, for these environments
      arpo doctor --cluster env.ray=10.0.0.1:6379
    """
    env = configured(settings, {}).env
    if not cluster:
        from arpo.doctor import diagnose, print_findings

        return print_findings(diagnose(env))
    from arpo.envs.pool import on_ray

    on_ray()  # says so where Ray is not installed
    from arpo.envs.ray_doctor import check_cluster, print_cluster

    checked = check_cluster(env if env.ray else env.model_copy(update={"ray": "auto"}))
    print_cluster(checked)
    if any(node.wrong for node in checked):
        raise typer.Exit(1)


def main() -> None:
    """The `arpo` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # also a terminal that knows only ASCII gets an answer
    # PyTorch's threads wait for each other by spinning. Where something else runs too, they mostly spin for one that
    # does not run: ten times slower and worse (docs/profile.md). So they spin for a moment only, then sleep.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    try:
        app(prog_name="arpo")
        return
    except ArpoError as error:
        reason = str(error)
    except OSError as error:  # what no command foresees: a disk that is full, a file that goes away
        reason = printable(f"{error.filename or 'cannot write'}: {error.strerror}")
    except Exception as error:
        if (lost := device_error(error)) is None:
            raise
        reason = f"{'out of memory' if lost.full else 'the device failed'}: {lost}"
    print(f"error: {reason}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
