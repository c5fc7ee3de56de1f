"""A sampler by which weights do not depend on the number of trainers."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Dict, List, Tuple, Union

import torch
from torch import Tensor
from torch.utils.data import Sampler

from .errors import ArgumentError
from .ids import _signed, mix, mix_number

if TYPE_CHECKING:
    from .session import Session


def permutation(seed: int, epoch: int, n: int) -> Tensor:
    """An order of the numbers below n, int64 [n]: a pure function, of equal bits with every version of PyTorch.

    It sorts the numbers by a bijective hash, so no two have the same place.
    """
    salt = mix_number(mix_number(seed + 0x9E3779B97F4A7C15 & 2**64 - 1) + epoch & 2**64 - 1)
    return torch.argsort(mix(torch.arange(n, dtype=torch.int64, device="cpu") ^ _signed(salt)))


class LaneSampler(Sampler):  # type: ignore[type-arg]
    """Delivers, for each batch in turn, the samples of each lane that this trainer hosts: a ``batch_sampler`` of
    ``DataLoader``.

    An epoch is a permutation of the data set that follows from (seed, epoch). It is cut into the fewest batches of at
    most ``batch_size`` samples, whose sizes differ by at most one; a batch is cut into the job's lanes in the same way.
    Each list of indices is one lane: one forward, one backward, one ``step``. So which samples make a batch does not
    depend on how many trainers there are.

    One iteration goes to the end of the epoch in which the session is: its first batch is the session's next one. A
    loader that begins while lanes are open, or of which deliveries are left out without ``session.skip()``, delivers
    samples of other lanes than those that are computed.

    ``data``: a data set, or its length. ``batch_size``: samples of a batch, over all lanes and trainers; at least the
    number of lanes; for a job that recovers it is to be given to a :class:`~gradbus.LaneLoader`. ``shuffle=False`` keeps
    the data set's order. ``drop_last``: every batch has exactly ``batch_size``; what is left of an epoch is not
    delivered. Errors: ArgumentError at the first iteration, when the lanes are known."""

    def __init__(
        self,
        data: Union[int, Sized],
        session: Session,
        batch_size: int,
        seed: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.samples = data if isinstance(data, int) else len(data)
        self.session, self.batch_size, self.seed = session, batch_size, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self._orders: Dict[int, Tensor] = {}
        if self.samples < 1 or batch_size < 1:
            raise ArgumentError(
                f"LaneSampler of {self.samples} samples in batches of {batch_size}: want at least 1 of both"
            )
        if drop_last:
            self.batches = self.samples // batch_size
            self.used = self.batches * batch_size
        else:
            self.batches = -(-self.samples // batch_size)
            self.used = self.samples
        if self.batches == 0:
            raise ArgumentError(
                f"LaneSampler of {self.samples} samples with drop_last: want a batch_size of at most that, not "
                f"{batch_size}"
            )

    def __len__(self) -> int:
        """Deliveries of a whole epoch to this trainer: its batches times its lanes. The session joins only where
        trainers have several lanes each: schedulers that ask for the length set rates before that."""
        return self.batches * self.session.lane_count

    def __iter__(self) -> Iterator[List[int]]:
        return (chosen.tolist() for chosen in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """The same indices as int64 tensors ``[n]``, for data that lie in tensors: ``for chosen in sampler.tensors():
        rows = data[chosen]`` needs no data set and no loader. They are not to be written to."""
        lanes = self.session.lanes
        self._check_lanes()
        epoch, first = divmod(self.session.next_batch, self.batches)
        for at in range(first, self.batches):
            for lane in lanes:
                yield self[epoch * self.batches + at, lane]

    def __getitem__(self, at: Tuple[int, int]) -> Tensor:
        """The samples of a lane of a batch: ``sampler[batch, lane]``, int64 ``[n]``. ``batch``: from 0, over all epochs.
        ``lane``: from 0, of those of all trainers. Errors: ArgumentError where a batch has fewer samples than lanes."""
        self._check_lanes()
        batch, lane = at
        total = self.session.lanes_total
        epoch, within = divmod(batch, self.batches)
        order = self._order(epoch)
        low, high = within * self.used // self.batches, (within + 1) * self.used // self.batches
        n = high - low
        return order[low + lane * n // total : low + (lane + 1) * n // total]

    def _check_lanes(self) -> None:
        least, total = self.used // self.batches, self.session.lanes_total
        if least < total:
            raise ArgumentError(
                f"LaneSampler: a batch of {least} samples has fewer than {total} lanes: want a batch_size of at "
                "least that"
            )

    def _order(self, epoch: int) -> Tensor:
        """That of an epoch; the newest one is kept."""
        known = self._orders.get(epoch)
        if known is None:
            if self.shuffle:
                known = permutation(self.seed, epoch, self.samples)
            else:
                known = torch.arange(self.samples, dtype=torch.int64, device="cpu")
            self._orders = {epoch: known}
        return known
