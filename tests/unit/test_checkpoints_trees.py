"""Whatever tree a job writes comes back, and whatever byte a store changes is noticed."""

import shutil
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, strategies as st

from runtime.checkpoints.store import CheckpointError, CheckpointStore, Damaged

Tree = dict[str, "Tree | bytes"]

#: Every letter that a file name may have, the awkward ones often.
_NAMES = (
    st.text(
        st.sampled_from("ab.~*?[#% \\'\"\n:;&é雪") | st.characters(codec="utf-8"),
        min_size=1,
        max_size=12,
    )
    .filter(lambda name: name not in (".", "..") and not {"/", "\0"} & set(name))
    .filter(lambda name: len(name.encode()) < 200)
)
_FILES = st.binary(max_size=40) | st.builds(
    lambda piece, count: piece * count, st.binary(min_size=1, max_size=3), st.integers(10, 30)
)
_TREES: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(_NAMES, _FILES, max_size=3),
    lambda inner: st.dictionaries(_NAMES, inner | _FILES, max_size=3),
    max_leaves=8,
)


def written(tree: Tree | bytes, path: Path) -> int:
    """Write a tree; give the count of its files."""
    if isinstance(tree, bytes):
        path.write_bytes(tree)
        return 1
    path.mkdir()
    return sum(written(inner, path / name) for name, inner in tree.items())


def read(path: Path) -> Tree | bytes:
    """Read a tree again."""
    if path.is_file():
        return path.read_bytes()
    return {each.name: read(each) for each in path.iterdir()}


@given(name=_NAMES, tree=_TREES | _FILES, part_bytes=st.integers(1, 50), chance=st.randoms())
def test_trees_come_back_and_damage_is_noticed(
    name: str, tree: Tree | bytes, part_bytes: int, chance: Random
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top, url = Path(folder), f"file://{folder}/store"
        (top / "job").mkdir()
        files = written(tree, top / "job" / name)
        store = CheckpointStore(url, part_bytes=part_bytes)
        if not files:
            with pytest.raises(CheckpointError, match="holds no file"):
                store.commit("job-1", 1, 10, top / "job" / name, 1.0)
            return
        checkpoint = store.commit("job-1", 1, 10, top / "job" / name, 1.0)
        assert store.find("job-1", 10) == checkpoint
        assert read(store.fetch(checkpoint, top / "into")) == tree
        objects = [path for path in (top / "store").rglob("*") if path.is_file()]
        harmed = chance.choice(sorted(objects))
        data = bytearray(harmed.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        harmed.write_bytes(data)
        shutil.rmtree(top / "into")
        store = CheckpointStore(url)
        found = store.find("job-1", 10)
        if harmed.name == "manifest.json":
            assert found is None
        else:
            assert found is not None  # the sizes are right
            with pytest.raises(Damaged, match=harmed.name):
                store.fetch(found, top / "into")
            assert store.find("job-1", 10) is None
