"""What a listing tells: the folder of each checkpoint and what lies in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from langgraph.checkpoint.s3._keys import Namespace, StretchName, parse_stretch_name
from langgraph.checkpoint.s3._requests import Body, Entry


@dataclass
class Folder:
    """What lies beside one checkpoint.

    Without the checkpoint object it is not there for a reader: writes that came before their checkpoint,
    or what a crashed put left.
    """

    id: str
    size: int | None = None  # of the checkpoint object; None if there is none
    modified: float = 0.0  # when the checkpoint object was stored
    touched: float = 0.0  # when the newest of what a run stores here was: the checkpoint, its values, its writes
    writes: dict[str, int] = field(default_factory=dict)  # sizes by name
    blobs: dict[str, int] = field(default_factory=dict)  # the same
    history: bool = False
    stretches: list[StretchName] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)  # with their ETags
    sizes: dict[str, int] = field(default_factory=dict)  # by key, in bytes
    body: Body | None = None  # the checkpoint object itself, if the manifest is a copy of this very version

    @property
    def stored(self) -> int:
        """The bytes of all that lies here."""
        return sum(self.sizes.values())

    @property
    def packed(self) -> int:
        """How many checkpoints the longest packed stretch that ends here holds."""
        return max((it.length for it in self.stretches), default=0)

    @property
    def committed(self) -> bool:
        """Whether the checkpoint object is there."""
        return self.size is not None


def group(ns: Namespace, entries: Iterable[Entry]) -> list[Folder]:
    """Group a listing below `ns.checkpoints` by checkpoint, in its order. Foreign keys are skipped."""
    folders: list[Folder] = []
    for entry in entries:
        found = ns.locate(entry.key)
        if found is None:
            continue
        if not folders or folders[-1].id != found.checkpoint_id:
            folders.append(Folder(found.checkpoint_id))
        folder = folders[-1]
        folder.keys[entry.key] = entry.etag
        folder.sizes[entry.key] = entry.size
        if found.kind not in ("history", "stretch"):  # a prune makes such too
            folder.touched = max(folder.touched, entry.modified)
        if found.kind == "checkpoint":
            folder.size = entry.size
            folder.modified = entry.modified
        elif found.kind == "writes":
            folder.writes[found.name] = entry.size
        elif found.kind == "blob":
            folder.blobs[found.name] = entry.size
        elif found.kind == "stretch":
            folder.stretches.append(parse_stretch_name(found.name))
        else:
            folder.history = True
    return folders
