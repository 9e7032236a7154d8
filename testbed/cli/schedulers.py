"""`fluxbed schedulers`: what can decide circuits."""

from __future__ import annotations

import click

from testbed.cli.output import format_option, print_records

__all__ = ["command"]


@click.command("schedulers")
@click.argument("words", nargs=-1, metavar="[[show] NAME]")
@format_option
def command(words: tuple[str, ...], style: str) -> None:
    """List the schedulers that -s accepts, or say all about one: source, method, options.

    Example: fluxbed schedulers solstice
    """
    from scheduler.policies.registry import describe, explain

    names = words[1:] if words[:1] == ("show",) else words  # as topologies has it
    if len(names) > 1:
        message = f"Got {len(names)} names: give one scheduler."
        raise click.UsageError(message)
    if not names:
        records = [{"scheduler": key, "description": line} for key, line in describe().items()]
        columns = [("scheduler", "scheduler", str), ("description", "description", str)]
        print_records(records, columns, style)
        return
    about = explain(names[0])
    if style == "table":
        click.echo(about.text)
        click.echo()
    options = [{"option": key, "default": value} for key, value in about.options.items()]
    if style == "json":
        whole = {"scheduler": about.name, "text": about.text, "options": options}
        print_records([whole], [("scheduler", "scheduler", str)], style)
    elif options:
        print_records(options, [("option", "option", str), ("default", "default", str)], style)
    elif style == "table":
        click.echo("It has no options.")
