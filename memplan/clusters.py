"""The catalogue of clusters, ``presets/clusters.yaml``, and how a job's ``cluster`` becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from memplan.errors import InvalidJob, did_you_mean
from memplan.presets import presets_dir
from memplan.spec.gpu import Cluster


@lru_cache(maxsize=1)
def load_clusters() -> Mapping[str, Cluster]:
    """Every cluster of the catalogue, by name."""
    from memplan.yaml_lines import fields_of, read_yaml

    path = presets_dir() / "clusters.yaml"
    document = fields_of(read_yaml(path, "clusters"), path, "the file", ("clusters",))
    rows = [Cluster.model_validate(row.values) for row in document.rows("clusters", tuple(Cluster.model_fields))]
    return {row.name: row for row in rows}


def find_cluster(given: str | Cluster) -> Cluster:
    """The cluster that a job means. Raises InvalidJob when there is none of that name."""
    if isinstance(given, Cluster):
        return given
    name = "-".join(given.lower().replace("_", " ").split())
    found = load_clusters().get(name)
    if found is None:
        own = "memplan show clusters lists them; keys of one's own: --set cluster.host_memory=512GiB"
        raise InvalidJob(f"cluster: no such cluster: {given[:60]!r}", did_you_mean(name, list(load_clusters())) or own)
    return found


def as_rows() -> list[dict[str, Any]]:
    """The catalogue as ``memplan show clusters`` lists it."""
    return [
        row.model_dump(mode="json", exclude={"nodes", "links", "host_memory"})
        | {"host_memory_bytes": row.host_memory, "within_gbps": row.links.within, "between_gbps": row.links.between}
        for row in load_clusters().values()
    ]
