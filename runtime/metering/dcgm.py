"""NVIDIA GPUs through a DCGM exporter's page, where the driver is not the agent's to ask.

Names, units and labels as in the exporter's documentation and template (github.com/NVIDIA/
dcgm-exporter, README and docs.nvidia.com/datacenter/dcgm): `gpu` is the index, `UUID` the GPU's
own also on the rows of its MIG devices, which add `GPU_I_ID`; `DCGM_FI_DEV_GPU_UTIL` is in per
cent and says nothing of MIG devices, `DCGM_FI_PROF_GR_ENGINE_ACTIVE` a share and does;
`DCGM_FI_DEV_FB_USED` is in MiB. A value that DCGM does not have is a number too large for any GPU
(9223372036854775794 and the like), which the meter leaves out as absurd.
"""

from collections.abc import Mapping, Sequence

from runtime.http_client import HttpError, check_url
from runtime.metering.exposition import MalformedError, Series, parse
from runtime.metering.fetch import fetch
from runtime.metering.sampled import Reading, Unreadable

_UTILISATION = "DCGM_FI_DEV_GPU_UTIL"
_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
_MEMORY = "DCGM_FI_DEV_FB_USED"
_TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
_POWER = "DCGM_FI_DEV_POWER_USAGE"
_WANTED = frozenset((_UTILISATION, _ACTIVE, _MEMORY, _TEMPERATURE, _POWER))

#: By GPU, by metric.
_Values = dict[str, dict[str, float]]


class DcgmGpus:
    """A `GpuSource`: the GPUs on one exporter's page. One that is not on it reads as unknown."""

    def __init__(
        self,
        url: str,
        nodes: Mapping[str, Sequence[int | str]],
        *,
        timeout_s: float = 2.0,
    ) -> None:
        """Note what to read; nothing is asked yet.

        Args:
            url: The exporter's page, `http://HOST:9400/metrics`.
            nodes: The GPUs of each node, in the order in which the agent numbers them: by index,
                by UUID, or a MIG device by `INDEX.INSTANCE` or `UUID.INSTANCE`.
            timeout_s: Within which the page must come.

        Raises:
            ValueError: the address is none.
        """
        check_url(url)
        self._url = url
        self._nodes = {node: [str(ref) for ref in refs] for node, refs in nodes.items()}
        self._timeout_s = timeout_s

    @property
    def gpus(self) -> Mapping[str, int]:
        return {node: len(refs) for node, refs in self._nodes.items()}

    def read(self) -> Mapping[str, Sequence[Reading]]:
        try:
            page = parse(fetch(self._url, self._timeout_s), _WANTED)
        except HttpError as error:
            raise Unreadable(str(error)) from None
        except MalformedError as error:
            raise Unreadable(f"{self._url}: {error}; is this a DCGM exporter?") from None
        if not page.series:
            raise Unreadable(
                f"{self._url}: none of {', '.join(sorted(_WANTED))} is there; add them to the"
                " exporter's list of counters"
            )
        labels = [row.labels for rows in page.series.values() for row in rows]
        if len({one.get("Hostname") or one.get("hostname") for one in labels} - {None}) > 1:
            raise Unreadable(
                f"{self._url}: shows several hosts; give the page of this machine's exporter alone"
            )
        values = _by_gpu(page.series)
        return {
            node: [_reading(ref, values.get(ref, {})) for ref in refs]
            for node, refs in self._nodes.items()
        }


def _by_gpu(series: Mapping[str, Sequence[Series]]) -> _Values:
    values: _Values = {}
    for name, rows in series.items():
        for row in rows:
            labels = row.labels
            instance = labels.get("GPU_I_ID", "")
            suffix = f".{instance}" if instance else ""
            for label in ("gpu", "UUID"):
                if label in labels:
                    values.setdefault(labels[label] + suffix, {})[name] = row.value
    return values


def _reading(ref: str, values: Mapping[str, float]) -> Reading:
    if "." in ref:  # of a part, the GPU's own utilisation and power say nothing
        return Reading(values.get(_ACTIVE), values.get(_MEMORY), values.get(_TEMPERATURE))
    per_cent = values.get(_UTILISATION)
    return Reading(
        values.get(_ACTIVE) if per_cent is None else per_cent / 100,
        values.get(_MEMORY),
        values.get(_TEMPERATURE),
        values.get(_POWER),
    )
