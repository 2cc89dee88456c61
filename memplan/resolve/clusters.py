"""A job's cluster: what it says of card, GPUs and nodes where the job itself says nothing."""

from memplan.clusters import find_cluster
from memplan.errors import InvalidJob
from memplan.gpus import LOCAL, find_gpu
from memplan.resolve.notes import Notes
from memplan.spec.gpu import Cluster
from memplan.spec.job import Job


def with_cluster(job: Job, notes: Notes) -> tuple[Job, Cluster]:
    """The job with what its cluster says, and the cluster. Raises InvalidJob where the two contradict each other."""
    if job.cluster is None:
        job = _with_cards_here(job, notes)
        return job, Cluster(gpu=job.gpu, gpus_per_node=job.gpus_per_node)
    cluster = find_cluster(job.cluster)
    of_a_node = job.gpus_per_node if notes.is_given("gpus_per_node") else cluster.gpus_per_node
    if of_a_node > cluster.gpus_per_node:
        raise InvalidJob(
            f"gpus_per_node: {job.gpus_per_node} is more than cluster {cluster.name} has: {cluster.gpus_per_node}",
            "leave one of them out",
        )
    values: dict[str, object] = {"gpus_per_node": of_a_node}
    notes.fill("gpus_per_node", of_a_node, "default", f"of cluster {cluster.name}")
    if job.gpu is None and cluster.gpu is not None:
        values["gpu"] = notes.fill("gpu", cluster.gpu, "default", f"of cluster {cluster.name}")
    at_hand = (cluster.nodes or 1) * cluster.gpus_per_node
    if not notes.is_given("num_gpus"):
        nodes = f"{cluster.nodes or 1} node{'s' if (cluster.nodes or 1) > 1 else ''} of cluster {cluster.name}"
        values["num_gpus"] = notes.fill("num_gpus", at_hand, "default", nodes)
    elif cluster.nodes is not None and job.num_gpus > at_hand:
        raise InvalidJob(
            f"num_gpus: {job.num_gpus} is more than the {at_hand} of cluster {cluster.name}", f"use {at_hand} or less"
        )
    return job.model_copy(update=values), cluster


def _with_cards_here(job: Job, notes: Notes) -> Job:
    """On this machine all the cards that are seen, where no number is given; of MIG instances a process sees one."""
    if job.gpu is None or job.gpu.strip().lower() != LOCAL or notes.is_given("num_gpus"):
        return job
    gpu = find_gpu(LOCAL)
    if gpu.here < 2 or gpu.form == "slice":
        return job
    return job.but(num_gpus=notes.fill("num_gpus", gpu.here, "default", "the cards that this machine shows"))
