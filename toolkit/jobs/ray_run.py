"""Ray: a job's records over the actors of a Ray cluster, with Ray Data; outcomes come back in input order.

In: the address of a cluster (or "local"), an engine's name and options, how many actors.   Out: the `outcomes` of `run_job`.
Knows nothing about: the store. The one process that called `run_job` writes it, one line at a time and in order, as ever.
Invariants: the input is read once, in order, on the caller's node, and is never held as a whole; a batch whose actor dies is run
again by another one (Ray Data), so that an outcome is neither lost nor doubled; every actor has the very model that the caller saw;
an engine that no longer runs ends the job as it does without Ray.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

from toolkit.contracts import Engine, Json
from toolkit.engine.engine import is_url, open_engine
from toolkit.errors import EngineError, MissingExtraError, ToolkitError, UnsupportedError, UsageError
from toolkit.jobs.attempt import Outcome
from toolkit.jobs.read import open_source
from toolkit.jobs.run import WINDOW, Job, outcomes_of
from toolkit.jobs.spec import PLAIN

LOCAL = "local"
MOST_ACTORS = 10_000
CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class RayPool:
    """Who decodes in place of this process: `run_job(..., outcomes=RayPool(...))`.

    `address` is "local" (a cluster of this machine's, for the job's time), "auto" or "host:port"; `actors` None is one a node. An
    actor opens `engine` with `options` (a path in them must be there on every node) and decodes `in_flight` records together; an
    embedded engine gets as many CPUs as `threads` says, 1 without. UnsupportedError for ray:// addresses and options that are objects.
    """

    address: str = LOCAL
    engine: str = "embedded"
    options: Mapping[str, Json] = field(default_factory=dict)
    actors: int | None = None

    def __post_init__(self) -> None:
        if self.address.startswith("ray://"):
            raise UnsupportedError(
                f"ray address {self.address}: a job reads and writes files, so it runs on a node of the cluster, not through a client",
                hint="host:port or auto, on a node; `ray job submit` starts it there",
            )
        host, _, port = self.address.rpartition(":")
        if self.address not in (LOCAL, "auto") and not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise UsageError(f"ray address {self.address!r} is not allowed: local, auto or host:port")
        if self.actors is not None and not 1 <= self.actors <= MOST_ACTORS:
            raise UsageError(f"ray actors = {self.actors!r} is not allowed: an integer from 1 to {MOST_ACTORS}")

        for name, value in self.options.items():
            if not isinstance(value, PLAIN):
                raise UnsupportedError(
                    f"engine option {name} is a {type(value).__name__}: an actor on another node gets text, numbers and truth values",
                    hint="name a folder or a stored model" if name == "tokenizer" else "leave it out",
                )

    def check(self, job: Job) -> None:
        """UnsupportedError for an input that is no file or folder: a stream is read once, and a batch may have to be read again."""
        if job.source.origin.path is None:
            raise UnsupportedError(
                f"input {job.source.origin.name}: on Ray a job reads a file or a folder",
                hint="save it to a file, or leave out --ray",
            )

    def __call__(self, job: Job, engine: Engine, start: int, in_flight: int, name: str) -> Iterator[Outcome]:
        """The outcomes from record `start` on. `engine` is the caller's own: its fingerprint must be every actor's."""
        self.check(job)
        with _cluster(self.address) as ray, ray.data.DataContext.current(_context(ray)):
            yield from self._stream(ray, _anywhere(job), engine.capabilities.fingerprint, start, in_flight, name)

    def _stream(self, ray: Any, job: Job, model: str, start: int, in_flight: int, name: str) -> Iterator[Outcome]:
        from ray.data import ActorPoolStrategy

        options = dict(self.options)
        cpus = 1 if is_url(self.engine) else options.setdefault("threads", 1)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        pool = ActorPoolStrategy(size=self.actors or len(nodes), max_tasks_in_flight_per_actor=2)
        first = ray.data.from_items([{"start": start}])  # a source that takes no CPU: the actors may have them all
        batches = first.map_batches(
            _read, fn_args=(job, start, WINDOW * in_flight), batch_size=None, num_cpus=0, label_selector=_here(ray)
        )
        worker = (job, self.engine, options, model, in_flight, name)
        outcomes = batches.map_batches(_Worker, fn_constructor_args=worker, batch_size=None, compute=pool, num_cpus=cpus)
        try:
            for row in outcomes.iter_rows():
                yield from pickle.loads(row["outcomes"])
                _raise(json.loads(row["error"]))
        except ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()
            raise EngineError(
                f"Ray ended the job: {why[-1] if why else type(error).__name__}", hint="--resume goes on"
            ) from error


class _Worker:
    """One actor: an engine that stays open, and a batch of records at a time."""

    def __init__(self, job: Job, name: str, options: dict[str, Json], model: str, in_flight: int, run: str) -> None:
        self._job, self._name, self._options, self._model, self._in_flight, self._run = (
            job,
            name,
            options,
            model,
            in_flight,
            run,
        )

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """The outcomes of a batch, up to where the engine stopped running; then also how that came (see `_raise`)."""
        records = pickle.loads(batch["records"][0])
        done: list[Outcome] = []
        failed = None
        try:
            for outcome in outcomes_of(self._job, self._engine, iter(records), self._in_flight, self._run):
                done.append(outcome)
        except ToolkitError as error:  # as data: Ray hands on the text of an exception, and not which one it was
            failed = {"code": error.exit_code, "message": error.message, "hint": error.hint}
        return {"outcomes": [pickle.dumps(done)], "error": [json.dumps(failed)]}

    @cached_property
    def _engine(self) -> Engine:
        """Opened by the first batch, where an error ends the job in its own words; in a constructor it would not."""
        engine = open_engine(self._name, **self._options)
        found = engine.capabilities.fingerprint
        if found != self._model:
            engine.close()
            raise EngineError(
                f"an actor's model has the fingerprint {found}, the caller's {self._model}",
                hint="put the same model on every node",
            )
        return engine


def _anywhere(job: Job) -> Job:
    """The job with its input by its whole path: a process of a cluster works in the folder that the cluster was started in."""
    path = job.source.origin.path
    assert path is not None  # see RayPool.check
    return replace(job, source=open_source(path.resolve(), job.spec))


def _read(_: dict[str, Any], job: Job, start: int, size: int) -> Iterator[dict[str, list[bytes]]]:
    """The records from `start` on, `size` in a batch. Pickled: they only go from one process of the cluster to another."""
    records = islice(job.source, start, None)
    while batch := list(islice(records, size)):
        yield {"records": [pickle.dumps(batch)]}


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Ray, connected and quiet. A cluster that the process was connected to already is used and stays."""
    ray = _ray()
    connected = ray.is_initialized()
    if not connected:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that starts here: it tells nobody
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        here = {"include_dashboard": False} if address == LOCAL else {}
        try:
            _knock(address)
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **here)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise EngineError(
                f"no Ray cluster at {address}: {error}", hint="ray start --head; --ray local starts one for the job"
            ) from None
    try:
        yield ray
    finally:
        if not connected:
            ray.shutdown()


def _knock(address: str) -> None:
    """OSError where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "ray") from None
    return ray


def _context(ray: Any) -> Any:
    """In order, a batch a block (one row above a byte is a block), no progress bars: the job has its own."""
    context = ray.data.DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    context.target_max_block_size = 1
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what ends the job is raised
    return context


def _here(ray: Any) -> dict[str, str]:
    """The input is a file of the caller's node."""
    return {"ray.io/node-id": ray.get_runtime_context().get_node_id()}


def _raise(failed: dict[str, Any] | None) -> None:
    """The error of an actor, as what it is to the caller: one of usage, or of an engine that does not run."""
    if failed is not None:
        kind = UsageError if failed["code"] == UsageError.exit_code else EngineError
        raise kind(failed["message"], hint=failed["hint"])
