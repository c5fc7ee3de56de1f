"""Prints what TensorBoard's own reader finds in an event file, a line for each value: python3 read.py FILE.

It needs the package tensorboard, of any version with event_file_loader; TensorFlow is not needed."""

import sys

from tensorboard.backend.event_processing import event_file_loader
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.util import tensor_util


def main(path):
    for e in event_file_loader.LegacyEventFileLoader(path).Load():
        lead = "%.6f step %d" % (e.wall_time, e.step)
        if e.HasField("file_version"):
            print(lead, "version", e.file_version, "writer", e.source_metadata.writer)
        for v in e.summary.value:
            if v.HasField("simple_value"):
                print(lead, v.tag, "%g" % v.simple_value)
                continue
            d, t = v.metadata.plugin_data, v.tensor
            text = t.string_val[0].decode() if t.string_val else ""
            print(lead, v.tag, "plugin", d.plugin_name, "class", v.metadata.data_class, "content", d.content.hex(),
                  "type", t.dtype, "dims", len(t.tensor_shape.dim), 'string "%s"' % text.replace('"', '\\"'))
            tensor_util.make_ndarray(t)  # it has to be one
    # As the server loads it.
    accumulator = plugin_event_accumulator.EventAccumulator(path)
    accumulator.Reload()
    for tag in accumulator.Tags()["tensors"]:
        kept = accumulator.Tensors(tag)
        print("tag", tag, "of", accumulator.SummaryMetadata(tag).plugin_data.plugin_name, "at", *[e.step for e in kept])


if __name__ == "__main__":
    main(sys.argv[1])
