"""The comparisons: each one operation on one set of tensors, ours and PyTorch's.

A case is made on a device, checks that both give the same, and holds the two functions to be timed. What PyTorch is asked to
do is said in `torch_form`, word for word, since that is what a ratio is worth.
"""
import ctypes
import itertools

import torch
import torch.nn.functional as F

from bounds import U, depth, parts, same_bits, share_equal, within

LR, MOMENTUM = torch.tensor(0.01).item(), torch.tensor(0.9).item()  # as float32 holds them


def draw(n, rows, zipf, seed=1):
    """n ids of [0, rows): uniform, or Zipf 1.05 with the ranks scattered over the rows."""
    random = torch.Generator().manual_seed(seed)
    if not zipf:
        return torch.randint(rows, (n,), generator=random)
    sums = torch.arange(1, rows + 1, dtype=torch.float64).pow_(-1.05).cumsum(0)
    rank = torch.searchsorted(sums, torch.rand(n, generator=random, dtype=torch.float64) * sums[-1])
    return torch.randperm(rows, generator=random)[rank.clamp_(max=rows - 1)]


def around(functions):
    """One function that calls them in turn."""
    turn = itertools.cycle(functions)
    return lambda: next(turn)()


class Case:
    """What all have; a subclass's constructor sets ours and theirs, and check compares them once."""
    target = {}  # least ratio by device

    def __init__(self, device):
        self.device, self.tensors = device, []

    def keep(self, *tensors):
        self.tensors += tensors
        return tensors[0] if len(tensors) == 1 else tensors

    def close(self):
        self.ours = self.theirs = None
        self.device.release(*self.tensors)
        self.tensors = []

    def call(self, entry, op, args):
        call = self.device.prepare(entry, op, args)
        self.keep(call.room)
        return call


class Bags(Case):
    op = "bag_forward"
    torch_form = "nn.functional.embedding_bag(ids, table, offsets, mode='sum', include_last_offset=True)"
    # Calls go round through so many sets of ids, for both: one would leave its rows in a near cache.
    sets = 8

    def __init__(self, device, rows, dim, bags, length, zipf):
        super().__init__(device)
        self.size = dict(rows=rows, dim=dim, bags=bags, length=length, ids="zipf" if zipf else "uniform")
        if (rows, dim, length) == (1000 * 1000, 64, 20):
            self.target = {"cpu": 1.3, "cuda": 1.3}
        self.length = length
        self.table, self.out = self.keep(device.noise(rows, dim), device.empty(bags, dim))
        self.offsets = self.keep(device.put(torch.arange(0, bags * length + 1, length)))
        self.bytes, self.calls, self.ids = 0, [], []
        for seed in range(self.sets):
            ids = draw(bags * length, rows, zipf, seed)
            self.bytes += (4 * dim * (torch.unique(ids).numel() + bags) + 8 * (ids.numel() + bags + 1)) // self.sets
            self.ids.append(self.keep(device.put(ids)))
            args = device.library.args(
                "gb_bag_forward_args", dim=dim, padding=-1, rows=device.read(self.table), ids=device.read(self.ids[-1]),
                offsets=device.read(self.offsets), out=device.write(self.out))
            self.calls.append(self.call("bag_forward", "GB_OP_BAG_FORWARD", args))
        self.ours = around(self.calls)
        self.theirs = around([lambda ids=ids: self.torch(ids) for ids in self.ids])

    def torch(self, ids):
        return F.embedding_bag(ids, self.table, self.offsets, mode="sum", include_last_offset=True)

    def check(self):
        self.device.run(self.calls[0])
        theirs = self.torch(self.ids[0])
        if self.length <= 64:  # one block: ours adds one by one, as PyTorch does
            return same_bits("bags", self.out, theirs)
        for bag in range(0, self.out.shape[0], 128):  # in parts: rows as float64 take room
            part = slice(bag, min(bag + 128, self.out.shape[0]))
            ids = self.ids[0][part.start * self.length:part.stop * self.length]
            rows = self.table[ids].double().view(-1, self.length, self.table.shape[1])
            n = torch.tensor(float(self.length), dtype=torch.float64)
            sums, sizes = rows.sum(1), rows.abs().sum(1)
            within("ours", self.out[part], sums, depth(n) * U * sizes)
            within("PyTorch's", theirs[part], sums, n * U * sizes)
        return share_equal(self.out, theirs)


class Sparse(Case):
    """A sparse gradient of n rows into a table: what coalesce, and coalesce followed by an update, start from. As with
    bags, calls go round through several sets of ids."""

    def __init__(self, device, rows, dim, n, zipf, sets):
        super().__init__(device)
        self.size = dict(rows=rows, dim=dim, n=n, ids="zipf" if zipf else "uniform")
        self.ids, self.values, self.sparse, self.distinct = [], [], [], 0
        for seed in range(sets):
            ids = draw(n, rows, zipf, seed)
            self.distinct += torch.unique(ids).numel() // sets
            self.ids.append(self.keep(device.put(ids)))
            self.values.append(self.keep(device.noise(n, dim)))
            self.sparse.append(torch.sparse_coo_tensor(self.ids[-1][None], self.values[-1], (rows, dim)))

    def sums(self):
        """Of the first set: distinct ids, their sums in float64, how many rows each has, and the sums of magnitudes."""
        keys, inverse, counts = torch.unique(self.ids[0], return_inverse=True, return_counts=True)
        like = torch.zeros(keys.numel(), self.values[0].shape[1], dtype=torch.float64, device=keys.device)
        sums = like.clone().index_add_(0, inverse, self.values[0].double())
        return keys, sums, counts.double()[:, None], like.index_add_(0, inverse, self.values[0].double().abs())


class Coalesce(Sparse):
    op = "coalesce"
    torch_form = "sparse_coo_tensor.coalesce()"

    def __init__(self, device, rows, dim, n, zipf):
        super().__init__(device, rows, dim, n, zipf, 4)
        self.target = {"cpu": 10.0, "cuda": 4.0} if zipf else {}
        self.bytes = (8 + 4 * dim) * (n + self.distinct)
        self.keys, self.out = self.keep(device.empty(n, dtype=torch.int64), device.empty(n, dim))
        self.calls = []
        for ids, values in zip(self.ids, self.values):
            args = device.library.args(
                "gb_coalesce_args", dim=dim, keys=device.read(ids), rows=device.read(values),
                out_keys=device.write(self.keys), out_rows=device.write(self.out))
            self.calls.append(self.call("coalesce", "GB_OP_COALESCE", args))
        self.ours = around(self.calls)
        self.theirs = around([s.coalesce for s in self.sparse])

    def check(self):
        count = self.device.run(self.calls[0]).count
        theirs = self.sparse[0].coalesce()
        keys, sums, counts, sizes = self.sums()
        same_bits("distinct ids", self.keys[:count], keys)
        same_bits("PyTorch's distinct ids", theirs.indices()[0], keys)
        within("ours", self.out[:count], sums, depth(counts) * U * sizes)
        within("PyTorch's", theirs.values(), sums, counts * U * sizes)
        return share_equal(self.out[:count], theirs.values())


class CoalesceApply(Sparse):
    """form: "index" is the same arithmetic in PyTorch's index operations, "plain" has no momentum and is torch.optim.SGD on
    the sparse gradient, "optim" is torch.optim.SGD with momentum, which does something else: it moves every row ever touched."""
    op = "coalesce+sgd"
    forms = {
        "index": "g = grad.coalesce(); m = buf[idx].mul_(mu).add_(g.values()); buf.index_copy_(0, idx, m); param.index_add_(0, idx, m, alpha=-lr)",
        "plain": "grad.coalesce(), then torch.optim.SGD(lr, momentum=0).step() (ours without momentum too)",
        "optim": "grad.coalesce(), then torch.optim.SGD(lr, momentum=0.9).step(), its sparse buffer put back to one step's rows each time",
    }

    def __init__(self, device, rows, dim, n, zipf, form):
        super().__init__(device, rows, dim, n, zipf, 1)
        self.form, self.torch_form = form, self.forms[form]
        self.target = {"cpu": 12.0} if form == "index" else {}
        momentum = 0.0 if form == "plain" else MOMENTUM
        self.param, self.moved = self.keep(device.noise(rows, dim), device.noise(rows, dim))
        tables = 2 if form == "plain" else 4
        self.bytes = (8 + 4 * dim) * n + tables * 4 * dim * self.distinct
        self.args = self.arguments(self.param, self.moved if momentum else None, momentum)
        self.ours = self.call("coalesce_apply", "GB_OP_COALESCE_APPLY", self.args)
        self.theirs = getattr(self, "theirs_" + form)(self.param, self.moved)

    def arguments(self, param, moved, momentum):
        d = self.device
        optimizer = d.sgd(momentum, LR, moved)
        args = d.library.args(
            "gb_coalesce_apply_args", dim=param.shape[1], weight=1.0, optimizer=optimizer, table=d.read(param), keys=d.read(self.ids[0]),
            rows=d.read(self.values[0]), out=d.write(param))
        args.keep = optimizer
        return args

    def theirs_index(self, param, moved):
        def step():
            g = self.sparse[0].coalesce()
            index = g.indices()[0]
            m = moved[index].mul_(MOMENTUM).add_(g.values())
            moved.index_copy_(0, index, m)
            param.index_add_(0, index, m, alpha=-LR)
        return step

    def theirs_plain(self, param, _):
        p = torch.nn.Parameter(param)
        optimizer = torch.optim.SGD([p], lr=LR)

        def step():
            p.grad = self.sparse[0].coalesce()
            optimizer.step()
        return step

    def theirs_optim(self, param, _):
        p = torch.nn.Parameter(param)
        optimizer = torch.optim.SGD([p], lr=LR, momentum=MOMENTUM)
        before = self.sparse[0].coalesce()

        def step():
            p.grad = self.sparse[0].coalesce()
            optimizer.state[p]["momentum_buffer"] = before.clone()
            optimizer.step()
        return step

    def check(self):
        if self.form == "optim":
            return "not comparable: another rule"
        d, plain = self.device, self.form == "plain"
        p, m = d.put(self.param), d.put(self.moved)
        args = self.arguments(p, None if plain else m, 0.0 if plain else MOMENTUM)
        call = d.prepare("coalesce_apply", "GB_OP_COALESCE_APPLY", args)
        d.run(call)
        tp, tm = self.param.clone(), self.moved.clone()
        getattr(self, "theirs_" + self.form)(tp, tm)()
        keys, sums, counts, sizes = self.sums()
        for what, got, gotM, roundings in (("ours", p, m, depth(counts)), ("PyTorch's", tp, tm, counts)):
            off, moved = roundings * U * sizes, sums
            if not plain:
                old = MOMENTUM * self.moved[keys].double()
                moved = old + sums
                off = off + U * (old.abs() + moved.abs())
                within(what + " momentum", gotM[keys], moved, off)
            want = self.param[keys].double() - LR * moved
            within(what + " rows", got[keys], want, LR * off + U * (LR * moved.abs() + want.abs()))
        rest = torch.ones(p.shape[0], dtype=torch.bool, device=p.device)
        rest[keys] = False
        same_bits("untouched rows", p[rest], self.param[rest])
        text = share_equal(p[keys], tp[keys])
        d.release(p, m, call.room)
        return text


class Dense(Case):
    """torch.optim.SGD with momentum on one dense tensor; ways are the implementations that this PyTorch has."""
    op = "dense sgd"
    target = {"cpu": 1.0, "cuda": 1.0}

    def __init__(self, device, n, way):
        super().__init__(device)
        self.size, self.bytes = dict(n=n), 20 * n
        self.param, self.grad, self.moved = self.keep(device.noise(n), device.noise(n), device.noise(n))
        self.flags = {} if way == "default" else {way: True}
        self.torch_form = "torch.optim.SGD(lr, momentum=0.9%s).step()" % ("" if way == "default" else ", %s=True" % way)
        self.ours = self.call("apply_dense", "GB_OP_APPLY_DENSE", self.arguments(self.param, self.moved))
        self.theirs = self.optimizer(self.param, self.moved).step

    def arguments(self, param, moved):
        d = self.device
        optimizer = d.sgd(MOMENTUM, LR, moved)
        args = d.library.args("gb_apply_dense_args", weight=1.0, optimizer=optimizer, param=d.read(param), grad=d.read(self.grad),
                              out=d.write(param))
        args.keep = optimizer
        return args

    def optimizer(self, param, moved):
        p = torch.nn.Parameter(param)
        p.grad = self.grad
        optimizer = torch.optim.SGD([p], lr=LR, momentum=MOMENTUM, **self.flags)
        optimizer.state[p]["momentum_buffer"] = moved  # as after a first step
        return optimizer

    def check(self):
        d = self.device
        p, m = d.put(self.param), d.put(self.moved)
        call = d.prepare("apply_dense", "GB_OP_APPLY_DENSE", self.arguments(p, m))
        d.run(call)
        tp, tm = self.param.clone(), self.moved.clone()
        self.optimizer(tp, tm).step()
        for part in parts(p.numel()):
            old = MOMENTUM * self.moved[part].double()
            moved = old + self.grad[part].double()
            want, off = self.param[part].double() - LR * moved, U * (old.abs() + moved.abs())
            for what, got, gotM in (("ours", p, m), ("PyTorch's", tp, tm)):
                within(what + " momentum", gotM[part], moved, off)
                within(what, got[part], want, LR * off + U * (LR * moved.abs() + want.abs()))
        text = share_equal(p, tp)
        d.release(p, m, call.room)
        return text


class Average(Case):
    op = "average"
    target = {}

    def __init__(self, device, terms, n, way):
        super().__init__(device)
        self.size, self.bytes = dict(terms=terms, n=n), 4 * n * (terms + 1)
        self.stacked, self.out, self.other = self.keep(device.noise(terms, n), device.empty(n), device.empty(n))
        rows = [self.stacked[i] for i in range(terms)]
        new = device.library.new
        array = (device.library.header.types["gb_term"] * terms)(
            *[new("gb_term", node=new("gb_node", first=i, count=1), values=device.read(r)) for i, r in enumerate(rows)])
        args = device.library.args("gb_average_args", weight=float(terms), lanes=terms, terms=ctypes.addressof(array), terms_n=terms,
                                   out=device.write(self.out))
        args.keep = array
        self.ours = self.call("average", "GB_OP_AVERAGE", args)
        if way == "mean":
            self.torch_form = "torch.mean(stacked, 0, out=out): the terms lie in one tensor already, nothing is copied"
            self.theirs = lambda: torch.mean(self.stacked, 0, out=self.other)
        else:
            self.torch_form = "torch.add(t0, t1, out=out); out.add_(t2) ... out.add_(t7); out.div_(8)"

            def add():
                torch.add(rows[0], rows[1], out=self.other)
                for r in rows[2:]:
                    self.other.add_(r)
                self.other.div_(terms)
            self.theirs = add

    def check(self):
        self.device.run(self.ours)
        self.theirs()
        terms, n = self.stacked.shape
        for part in parts(n, 1 << 20):
            rows = self.stacked[:, part].double()
            want, bound = rows.mean(0), rows.abs().sum(0) / terms
            within("ours", self.out[part], want, 4 * U * bound)  # three levels of the tree and a division
            within("PyTorch's", self.other[part], want, (terms + 1) * U * bound)
        return share_equal(self.out, self.other)


class Copy(Case):
    op = "copy"
    torch_form = "to.copy_(from)"

    def __init__(self, device, n):
        super().__init__(device)
        self.size, self.bytes = dict(n=n), 8 * n
        a, b = self.a, self.b = self.keep(device.noise(n), device.empty(n))
        args = device.library.args("gb_copy_args", to=b.data_ptr(), bytes=4 * n, **{"from": a.data_ptr()})
        self.ours = self.call("copy", "GB_OP_COPY", args)
        self.theirs = lambda: b.copy_(a)

    def check(self):
        self.device.run(self.ours)
        return same_bits("copy", self.b, self.a)
