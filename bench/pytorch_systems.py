#!/usr/bin/env python3
"""The loops of four parameter-server programs in PyTorch, for comparison with psbench.

Written for this comparison against torch.distributed.rpc (TensorPipe), gloo and DistributedDataParallel as of PyTorch 1.13: what
each program does on a batch, without what it prints. Every role is a process of its own with one thread, as psbench's are. Prints
one line of JSON. With --transport auto TensorPipe chooses, which on one host is shared memory; with tcp it has sockets alone, as
between hosts. What gloo adds up goes by TCP in both.

    bench/pytorch_systems.py update  --trainers 3 --batches 200 --in 100 --out 30 --trainer-batch 20
    bench/pytorch_systems.py average --hook rpc --epochs 1
    bench/pytorch_systems.py hybrid  --trainers 8 --servers 8 --epochs 20
    bench/pytorch_systems.py hosted  --batches 60
    bench/pytorch_systems.py local   --batches 30            one training step of the hosted model, without any server

update   a server with the model and SGD with momentum; requests wait until one of each trainer is in    rounds_per_second
average  replicas with DistributedDataParallel, whose hook has buckets averaged by a server              batch_all_ms
hybrid   embeddings on servers by distributed autograd, dense part replicated                            p50_seconds_per_epoch
hosted   the whole model on a server, forward and backward by distributed autograd                       images_per_second
"""
import argparse
import json
import multiprocessing
import random
import socket
import statistics
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as autograd
import torch.distributed.rpc as rpc
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import DistributedOptimizer
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

HOST = "127.0.0.1"
TIMEOUT = 300  # seconds of one request


def free_port():
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


# What TensorPipe is told: nothing, so that on one host it takes shared memory, or to use sockets alone.
TRANSPORTS = {"auto": {}, "tcp": {"_transports": ["uv"], "_channels": ["basic"]}}


def join_rpc(name, rank, world, port, options):
    settings = rpc.TensorPipeRpcBackendOptions(num_worker_threads=max(16, world), rpc_timeout=TIMEOUT, init_method=f"tcp://{HOST}:{port}",
                                               **TRANSPORTS[options.transport])
    rpc.init_rpc(name, rank=rank, world_size=world, rpc_backend_options=settings)


def child(role, rank, world, ports, options, results):
    torch.set_num_threads(1)
    torch.manual_seed(options.seed + rank)
    random.seed(options.seed + rank)
    found = role(rank, world, ports, options)
    if found is not None:
        results.put(found)


def run(roles, options):
    """Runs one process for each of the roles and returns what they have found. The rank is the place in the list."""
    context = multiprocessing.get_context("fork")
    ports, results = (free_port(), free_port()), context.SimpleQueue()
    processes = [context.Process(target=child, args=(role, i, len(roles), ports, options, results), daemon=True) for i, role in enumerate(roles)]
    for p in processes:
        p.start()
    found = []

    def drain():  # a full pipe would keep its writer from ending
        while (one := results.get()) is not None:
            found.append(one)

    reader = threading.Thread(target=drain)
    reader.start()
    failed = False
    while any(p.is_alive() for p in processes) and not failed:
        time.sleep(0.01)
        failed = any(p.exitcode not in (None, 0) for p in processes)
    for p in processes:
        if failed:
            p.terminate()
        p.join()
    results.put(None)
    reader.join()
    if failed:
        sys.exit(f"pytorch_systems.py: a process failed: {[p.exitcode for p in processes]}")
    return found


held, held_lock = {}, threading.Lock()


def hold(make, *arguments):
    """A reference to the one object that this process keeps for all who ask, made for the first of them."""
    with held_lock:
        if make not in held:
            held[make] = rpc.RRef(make(*arguments))
        return held[make]


def span(found):
    """Seconds from the first begin to the last end of what trainers found, whose clock is that of the host."""
    return max(f["end"] for f in found) - min(f["begin"] for f in found)


# update: one server with the model and its optimizer.


class BatchServer:
    def __init__(self, size, inputs, outputs, lr, momentum):
        self.size, self.model = size, nn.Linear(inputs, outputs)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=momentum)
        self.lock, self.waiting, self.count = threading.Lock(), Future(), 0
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)

    def get_model(self):
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update(server, grads):
        self = server.local_value()
        with self.lock:
            for p, g in zip(self.model.parameters(), grads):
                p.grad += g
            self.count += 1
            waiting = self.waiting
            if self.count == self.size:
                for p in self.model.parameters():
                    p.grad /= self.size
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                self.count, self.waiting = 0, Future()
                waiting.set_result(self.model)
        return waiting


def update_trainer(rank, world, ports, options):
    join_rpc(f"trainer{rank}", rank, world, ports[0], options)
    dist.init_process_group("gloo", init_method=f"tcp://{HOST}:{ports[1]}", rank=rank, world_size=world - 1)
    server = rpc.rpc_sync("server", hold, args=(BatchServer, options.update_size or options.trainers, options.inputs, options.outputs,
                                                  options.lr, options.momentum))
    labels = torch.zeros(options.trainer_batch, options.outputs)
    model = server.rpc_sync().get_model()
    for i in range(options.warmup + options.batches):
        if i == options.warmup:
            dist.barrier()
            begin = time.time()
        loss = F.l1_loss(model(torch.randn(options.trainer_batch, options.inputs)), labels)
        loss.backward()
        model = rpc.rpc_sync(server.owner(), BatchServer.update, args=(server, [p.grad for p in model.parameters()]))
    found = {"begin": begin, "end": time.time()}
    rpc.shutdown()
    return found


def serve(rank, world, ports, options):
    servers = getattr(options, "servers", 0)
    join_rpc(f"ps{rank - world + servers}" if servers else "server", rank, world, ports[0], options)
    rpc.shutdown()


def update(options):
    seconds = span(run([update_trainer] * options.trainers + [serve], options))
    rate = options.batches / seconds
    values = options.outputs * (options.inputs + 1)
    return {"rounds_per_second": rate, "push_bytes_per_second": 4 * values * options.trainers * rate, "seconds": seconds}


# average: a replica and an optimizer in every trainer, averages by a server.


class AveragingServer:
    def __init__(self, trainers):
        self.trainers, self.lock, self.rounds = trainers, threading.Lock(), {}

    @staticmethod
    @rpc.functions.async_execution
    def average(server, batch, bucket, gradient):
        self, answer = server.local_value(), Future()
        if isinstance(gradient, list):
            gradient = torch.sparse_coo_tensor(*gradient)
        with self.lock:
            sum_, waiting = self.rounds.get((batch, bucket), (None, []))
            sum_ = gradient if sum_ is None else sum_.add_(gradient)
            waiting.append(answer)
            self.rounds[batch, bucket] = sum_, waiting
            if len(waiting) == self.trainers:
                del self.rounds[batch, bucket]
                mean = sum_.div_(self.trainers)
                mean = packed(mean) if mean.is_sparse else mean
                for w in waiting:
                    w.set_result(mean)
        return answer


def packed(sparse):
    sparse = sparse.coalesce()
    return [sparse.indices(), sparse.values(), sparse.size()]


class Dummy(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.embedding = nn.EmbeddingBag(1024, 1024, mode="mean", sparse=sparse)
        self.layers = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))

    def forward(self, x):
        return F.softmax(self.layers(self.embedding(x)), dim=1)


def dummy_batches(options, rank):
    g = torch.Generator().manual_seed(options.seed)
    ids = torch.randperm(1024, generator=g)[:819]
    samples = ids[torch.randint(819, (1024, 1024), generator=g)]
    targets = torch.randint(1024, (1024,), generator=g)
    whole = list(zip(samples.split(options.trainer_batch), targets.split(options.trainer_batch)))
    return whole[rank::options.trainers]


class Hook:
    """What DistributedDataParallel calls with each bucket: rpc sends all to the server, sparse-rpc only what is sparse."""

    def __init__(self, options, server, group):
        self.options, self.server, self.group, self.batch = options, server, group, 0

    def __call__(self, _, bucket):
        tensor = bucket.buffer()
        if self.options.hook == "allreduce" or (self.options.hook == "sparse-rpc" and not tensor.is_sparse):
            work = self.group.allreduce([tensor / self.options.trainers])
            return work.get_future().then(lambda f: f.value()[0])
        sent = packed(tensor) if tensor.is_sparse else tensor
        answer = rpc.rpc_async(self.server.owner(), AveragingServer.average, args=(self.server, self.batch, bucket.index(), sent))

        def unpack(future):
            mean = future.wait()
            return torch.sparse_coo_tensor(*mean) if isinstance(mean, list) else mean

        return answer.then(unpack)


def average_trainer(rank, world, ports, options):
    join_rpc(f"trainer{rank}", rank, world, ports[0], options)
    dist.init_process_group("gloo", init_method=f"tcp://{HOST}:{ports[1]}", rank=rank, world_size=world - 1)
    server = rpc.rpc_sync("server", hold, args=(AveragingServer, options.trainers))
    torch.manual_seed(options.seed)
    group = dist.distributed_c10d._get_default_group()
    hook = Hook(options, server, group)
    model = DistributedDataParallel(Dummy(True))
    model.register_comm_hook(None, hook.__call__)
    optimizer, batches = torch.optim.SGD(model.parameters(), lr=1e-4), dummy_batches(options, rank)
    times = {"all": [], "forward": [], "backward": []}
    for epoch in range(options.warmup + options.epochs):
        for x, target in batches:
            hook.batch += 1
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)  # with zeros, sparse gradients would be added to what is there, at twice the time
            loss = F.cross_entropy(model(x), target)
            forward = time.perf_counter()
            loss.backward()
            backward = time.perf_counter()
            optimizer.step()
            end = time.perf_counter()
            if epoch >= options.warmup:
                for name, value in (("all", end - begin), ("forward", forward - begin), ("backward", backward - forward)):
                    times[name].append(1000 * value)
    dist.barrier()
    rpc.shutdown()
    return times


def average(options):
    found = run([average_trainer] * options.trainers + [serve], options)
    median = {name: statistics.median(sum((f[name] for f in found), [])) for name in ("all", "forward", "backward")}
    return {"batch_all_ms": median["all"], "forward_ms": median["forward"], "backward_ms": median["backward"]}


# hybrid: embeddings on servers, dense part replicated.


class Embedding:
    def __init__(self, rows, dim):
        self.bag = nn.EmbeddingBag(rows, dim, mode="sum")

    def forward(self, ids, offsets):
        return self.bag(ids, offsets)

    def parameters(self):
        return [rpc.RRef(p) for p in self.bag.parameters()]


def hybrid_batches():
    for _ in range(10):
        n = random.randint(20, 50)
        offsets, at = [], 0
        while at < n:
            offsets.append(at)
            at += random.randint(1, 10)
        yield torch.randint(300, (n,)), torch.LongTensor(offsets), torch.randint(8, (len(offsets),))


def hybrid_trainer(rank, world, ports, options):
    join_rpc(f"trainer{rank}", rank, world, ports[0], options)
    dist.init_process_group("gloo", init_method=f"tcp://{HOST}:{ports[1]}", rank=rank, world_size=options.trainers)
    embeddings = [rpc.rpc_sync(f"ps{i}", hold, args=(Embedding, options.embeddings, options.dim)) for i in range(options.servers)]
    torch.manual_seed(options.seed)
    width = options.servers * options.dim
    dense = DistributedDataParallel(nn.Sequential(nn.Linear(width, 256), nn.Linear(256, 128), nn.ReLU(),
                                                  nn.Linear(128, 64), nn.Linear(64, 32), nn.Linear(32, 8)))
    parameters = sum((e.rpc_sync().parameters() for e in embeddings), []) + [rpc.RRef(p) for p in dense.parameters()]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=options.lr)
    seconds, samples = [], 0
    for epoch in range(options.warmup + options.epochs):
        begin, count = time.time(), 0
        for ids, offsets, target in hybrid_batches():
            count += len(target)
            with autograd.context() as context:
                pooled = torch.cat([e.rpc_sync().forward(ids, offsets) for e in embeddings], dim=1)
                loss = F.cross_entropy(dense(pooled), target)
                autograd.backward(context, [loss])
                optimizer.step(context)
        if epoch >= options.warmup:
            seconds.append(time.time() - begin)
            samples += count
    dist.barrier()
    rpc.shutdown()
    return {"seconds": seconds, "samples": samples}


def hybrid(options):
    found = run([hybrid_trainer] * options.trainers + [serve] * options.servers, options)
    seconds = sorted(sum((f["seconds"] for f in found), []))
    result = {f"p{p}_seconds_per_epoch": seconds[min(len(seconds) - 1, len(seconds) * p // 100)] for p in (50, 75, 90, 95)}
    result["samples_per_second"] = sum(f["samples"] for f in found) / max(sum(f["seconds"]) for f in found)
    return result


# hosted: the whole model on a server.


def hosted_model():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Flatten(),
                         nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10), nn.LogSoftmax(dim=1))


class Hosted:
    def __init__(self):
        self.model = hosted_model()

    def forward(self, x):
        return self.model(x)

    def gradients(self, context):
        return autograd.get_gradients(context)

    def parameters(self):
        return [rpc.RRef(p) for p in self.model.parameters()]


def images(options):
    """Noise in the shape of the images: what a step costs does not depend on what is in them."""
    return [(torch.randn(options.trainer_batch, 1, 28, 28), torch.randint(10, (options.trainer_batch,))) for _ in range(16)]


def hosted_trainer(rank, world, ports, options):
    join_rpc(f"trainer{rank}", rank, world, ports[0], options)
    model, data = rpc.rpc_sync("server", hold, args=(Hosted,)), images(options)
    optimizer = DistributedOptimizer(torch.optim.SGD, model.rpc_sync().parameters(), lr=0.03)
    for i in range(options.warmup + options.batches):
        if i == options.warmup:
            begin = time.time()
        x, target = data[i % len(data)]
        with autograd.context() as context:
            loss = F.nll_loss(model.rpc_sync().forward(x), target)
            autograd.backward(context, [loss])
            assert options.skip_gradients or model.rpc_sync().gradients(context) != {}
            optimizer.step(context)
    found = {"begin": begin, "end": time.time()}
    rpc.shutdown()
    return found


def hosted(options):
    seconds = span(run([hosted_trainer, serve], options))
    return {"images_per_second": options.batches * options.trainer_batch / seconds, "seconds": seconds}


def local(options):
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model, data, times = hosted_model(), images(options), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    for i in range(options.warmup + options.batches):
        x, target = data[i % len(data)]
        begin = time.perf_counter()
        optimizer.zero_grad()
        F.nll_loss(model(x), target).backward()
        optimizer.step()
        times.append(1000 * (time.perf_counter() - begin))
    return {"step_ms": statistics.median(times[options.warmup:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="system", required=True)
    defaults = {"seed": 1, "warmup": 5}
    for do, own in (
        (update, {"trainers": 3, "batches": 200, "in": 100, "out": 30, "trainer-batch": 20, "lr": 0.001, "momentum": 0.9, "update-size": 0}),
        (average, {"trainers": 2, "epochs": 1, "trainer-batch": 32, "hook": "rpc", "warmup": 1}),
        (hybrid, {"trainers": 8, "servers": 8, "embeddings": 300, "dim": 64, "epochs": 100, "lr": 0.05}),
        (hosted, {"batches": 60, "trainer-batch": 32}),
        (local, {"batches": 30, "trainer-batch": 32}),
    ):
        command = commands.add_parser(do.__name__)
        command.set_defaults(do=do)
        for name, value in {**defaults, **own}.items():
            command.add_argument(f"--{name}", type=type(value), default=value, dest={"in": "inputs", "out": "outputs"}.get(name))
        if do is not local:
            command.add_argument("--transport", choices=TRANSPORTS, default="auto", help="of RPC: auto, by shared memory on one host, or tcp")
    commands.choices["hosted"].add_argument("--skip-gradients", action="store_true", help="do not fetch the gradients only to see that there are some")
    options = parser.parse_args()
    if options.system == "average" and options.hook not in ("rpc", "sparse-rpc", "allreduce"):
        parser.error(f"hook {options.hook!r}: want rpc, sparse-rpc or allreduce")
    print(json.dumps(options.do(options)))


if __name__ == "__main__":
    main()
