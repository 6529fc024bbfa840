"""How objects show themselves: a short table in rich terminals and notebooks, from the facts that a class lists."""

from __future__ import annotations

from typing import Any

__all__ = ["Shown"]


class Shown:
    """A class that lists ``_facts()`` is shown as a two-column table by rich and by notebooks."""

    def _facts(self) -> list[tuple[str, str]]:
        """(label, text), the first being what it is."""
        raise NotImplementedError

    def __rich__(self) -> Any:
        from rich.table import Table

        (title, name), *rest = self._facts()
        table = Table(title=f"{title} {name}".strip(), show_header=False, title_justify="left")
        for label, text in rest:
            table.add_row(label, text)
        return table

    def _repr_html_(self) -> str:
        import html

        (title, name), *rest = self._facts()
        rows = "".join(f"<tr><th>{html.escape(label)}</th><td>{html.escape(text)}</td></tr>" for label, text in rest)
        return f"<table><caption>{html.escape(f'{title} {name}'.strip())}</caption>{rows}</table>"
