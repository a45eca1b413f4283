"""What an owner says it needs: with what is protected, and without what is away."""

from pathlib import Path

from runtime.core import NodeHandedBack
from runtime.owners import ProtectTimes
from tests.lending import Scene


def figures(scene: Scene, now_s: float) -> tuple[int, int]:
    (load,) = scene.owner.loads(now_s)
    return load.gpus_needed, load.gpus_serving


def test_what_is_away_does_not_serve(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert figures(scene, 0.0) == (0, 4)
    scene.owner.drain("s1", 0.0)
    assert scene.owner.serving() == ("s1", "s2")
    scene.at(0.0)
    assert figures(scene, 0.0) == (0, 2)
    assert scene.owner.serving() == ("s2",)
    scene.ends("drain")
    scene.begin()
    assert scene.owner.serving() == ("s2",), "before anybody says what is lent"
    scene.owner.hand_back("s1", 0.0)
    assert figures(scene, 0.0) == (0, 2)
    scene.at(0.0)
    scene.ends("hand_back")
    assert figures(scene, 0.0) == (0, 4)
    assert scene.owner.serving() == ("s1", "s2")
    scene.meter.serving = 3
    assert figures(scene, 0.0) == (0, 3), "the meter saw a replica missing"


def test_gpus_that_came_back_count_as_needed_for_their_protect_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ProtectTimes())
    scene.drain()
    scene.ends("drain")
    scene.owner.hand_back("s1", 0.0)
    scene.ends("hand_back", now_s=100.0)
    assert figures(scene, 129.0) == (2, 4)
    scene.begin()
    assert figures(scene, 129.9) == (2, 4), "a restart forgets no protection"
    assert figures(scene, 130.0) == (0, 4)


def test_need_that_falls_lingers_and_a_drain_waits_for_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ProtectTimes())
    scene.meter.needed = 4
    assert figures(scene, 0.0) == (4, 4)
    scene.meter.needed = 1
    assert figures(scene, 10.0) == (4, 4)
    scene.drain("s1", 11.0)
    assert scene.asked() == [], "protected GPUs are not lent"
    assert scene.owner.next_due_s() == 16.0
    scene.at(39.9)
    assert scene.asked() == []
    scene.at(40.0)
    assert scene.asked() == ["drain s1"]
    scene.ends("drain", now_s=41.0)
    assert figures(scene, 42.0) == (1, 2)


def test_a_drain_that_waits_is_called_off_without_touching_the_owner(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ProtectTimes())
    scene.meter.needed = 4
    figures(scene, 0.0)
    scene.begin()
    scene.drain("s1", 1.0)
    assert scene.hand_back("s1", 2.0) == NodeHandedBack("s1")
    assert scene.asked() == []


def test_the_load_of_one_node_concerns_that_node_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ProtectTimes(), node="s2")
    scene.meter.needed = 2
    assert figures(scene, 0.0) == (2, 2)
    scene.drain("s2", 1.0)
    scene.drain("s1", 1.0)
    assert scene.asked() == ["drain s1"]
