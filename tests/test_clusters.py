"""Clusters: the catalogue, what a job takes from one, and the verdict on the nodes' own memory."""

from typing import Any

import pytest

from memplan import estimate
from memplan.cli.options import collect
from memplan.clusters import load_clusters
from memplan.errors import InvalidJob
from memplan.gpus import find_gpu
from memplan.resolve import resolve
from memplan.spec.gpu import Cluster
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.units import GiB

JOB = {"model": "llama-3.2-1b", "method": "sft", "sequence_length": 512, "zero_stage": 2}


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({**JOB, **keys}))


@pytest.mark.parametrize("cluster", load_clusters().values(), ids=lambda cluster: cluster.name)
def test_every_cluster_names_a_card_its_links_and_a_source(cluster: Cluster) -> None:
    assert cluster.gpu is not None
    assert find_gpu(cluster.gpu).name == cluster.gpu
    assert cluster.links.between or cluster.nodes == 1
    assert cluster.source
    assert cluster.links.within or find_gpu(cluster.gpu).link_gbps


def test_a_cluster_says_what_the_job_leaves_out() -> None:
    found = recipe(cluster="aws-p4de")
    assert found.hardware.gpu is not None
    assert (found.hardware.gpu.name, found.parallel.world, found.hardware.gpus_per_node) == ("a100-80gb", 8, 8)
    assert [text for text in found.provenance.assumptions if text.startswith("num_gpus: 8")]
    assert recipe(cluster="DGX H100", num_gpus=32, gpu="h200-141gb").parallel.world == 32


def test_a_named_cluster_is_changed_on_the_command_line() -> None:
    given = {"target": "llama-3.2-1b", "cluster": "dgx-h100", "set_": ["cluster.host_memory=400GiB"]}
    found = recipe(**collect(given)[1]).hardware.cluster
    assert found is not None
    assert (found.name, found.host_memory, found.links.between) == ("dgx-h100", 400 * GiB, 400)


def test_a_cluster_of_ones_own() -> None:
    nodes = {"gpu": "rtx-4090-24gb", "nodes": 2, "gpus_per_node": 4, "links": {"between": 3}, "host_memory": "256GiB"}
    found = recipe(cluster=nodes)
    assert (found.parallel.world, found.hardware.cluster.links.between, found.hardware.cluster.host_memory) == (
        8,
        3,
        256 * GiB,
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"cluster": "dgx-h10"}, "cluster: no such cluster: 'dgx-h10'"),
        ({"cluster": "dgx-h100", "gpus_per_node": 16}, "gpus_per_node: 16 is more than cluster dgx-h100 has: 8"),
        ({"cluster": {"nodes": 2, "gpu": "h100-80gb"}, "num_gpus": 17}, "num_gpus: 17 is more than the 16"),
        ({"cluster": {"gpu": "h100-80gb", "racks": 2}}, "racks"),
        ({"cluster": {"links": {"between": -1}}}, "cluster"),
        ({"cluster": {"host_memory": "1KB"}}, "cluster"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        recipe(**keys)
    assert message in refused.value.message


@pytest.mark.parametrize(("memory", "fits"), [("1GiB", "no"), ("1TB", "yes"), (None, "yes")])
def test_the_nodes_own_memory_is_part_of_the_verdict(memory: str | None, fits: str) -> None:
    nodes = {"gpu": "h100-80gb"} | ({"host_memory": memory} if memory else {})
    alone = {"sharding": "none", "num_gpus": 1, "sequence_length": 8192, "offload": ["activations"]}
    report = estimate({"model": "llama-3.2-1b", "method": "sft", "cluster": nodes, **alone})
    assert report.verdict is not None
    assert report.host.bytes_per_node > GiB
    assert (report.verdict.fits, report.host.fits) == (fits, None if memory is None else fits == "yes")
