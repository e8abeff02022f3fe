"""What was tried and what came of it, as the table at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

COLUMNS = ("kills", "cases", "refused", "ran", "lost", "unequal", "tracebacks", "hangs", "accepted", "harm")
BAD = COLUMNS[4:]
"""Old data or rows gone; another result than undisturbed; tracebacks and crashes; nonsense that was taken for good;
files changed or written where the command has no business."""


@dataclass
class Tally:
    """Counts by row of the table, and a line about every bad case."""

    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def count(self, row: str, column: str, times: int = 1) -> None:
        self.rows.setdefault(row, dict.fromkeys(COLUMNS, 0))[column] += times

    def bad(self, row: str, column: str, what: str, times: int = 1) -> None:
        self.count(row, column, times)
        self.complaints.append(f"{column}: {row}: {what}")
        print(f"\n{self.complaints[-1]}", flush=True)

    @property
    def failed(self) -> bool:
        return any(counts[column] for counts in self.rows.values() for column in BAD)

    def table(self) -> str:
        """Markdown, with a sum."""
        total = {column: sum(counts[column] for counts in self.rows.values()) for column in COLUMNS}
        lines = [f"| what | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
        for name, counts in [*self.rows.items(), ("**all**", total)]:
            lines.append(f"| {name} | {' | '.join(str(counts[column]) for column in COLUMNS)} |")
        return "\n".join(lines)
