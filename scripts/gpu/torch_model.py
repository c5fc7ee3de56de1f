#!/usr/bin/env python3
"""Trains one model of gradbus tables with its tensors on a device, and on the CPU: rows of equal bits.

All values are small multiples of powers of two, so every sum is exact on both. Status 3 and a line SKIP where this build refuses
tensors of the device.
"""

import argparse
import sys

import torch

import gradbus

ROWS, DIM, STEPS = 1000, 16, 8


def trained(device):
    """Rows after some steps, and the losses."""
    session = gradbus.local("model-" + device)
    table = gradbus.EmbeddingBag(ROWS, DIM, mode="sum", name="rows", session=session)
    model = torch.nn.Sequential(table)
    optimizer = gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.5, momentum=0.5))
    draw, losses = torch.Generator().manual_seed(5), []
    for _ in range(STEPS):
        ids = torch.randint(ROWS, (64, 4), generator=draw).to(device)
        factor = (torch.randint(-4, 5, (64, DIM), generator=draw) / 8).to(device)
        out = table(ids)
        if out.device.type != device:
            out = out.to(device)
        loss = (out * factor).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    rows = session.lookup("rows", torch.arange(ROWS)).clone()
    session.close()
    return rows, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    device = parser.parse_args().device
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_model.py: PyTorch sees no CUDA device here")
    want, losses = trained("cpu")
    try:
        rows, others = trained(device)
    except gradbus.ArgumentError as e:
        print("SKIP not built yet: tensors on %s: %s" % (device, e))
        sys.exit(3)
    if not torch.equal(rows.cpu().view(torch.int32), want.view(torch.int32)):
        sys.exit("torch_model.py: rows differ between cpu and %s; losses %s and %s" % (device, losses, others))
    print("rows of equal bits on cpu and %s" % device)


if __name__ == "__main__":
    main()
