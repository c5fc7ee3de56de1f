package metrics

import (
	"time"

	"gradbus/schema"
)

// disk is a file system at a moment.
type disk struct {
	*schema.DiskReport
	now time.Time
}

// diskTable tells of file systems that this ps and the trainers of its jobs write to.
func diskTable() table[disk] {
	return table[disk]{[]string{"host", "path"}, []figure[disk]{
		gauge("gradbus_disk_free_bytes",
			"Free space of the file system under a path that this ps, or a trainer of a job that it coordinates, writes to.",
			func(d disk) float64 { return float64(d.FreeBytes) }),
		gauge("gradbus_disk_size_bytes", "Size of that file system.", func(d disk) float64 { return float64(d.TotalBytes) }),
		gauge("gradbus_disk_needed_bytes", "What will be written there at once, such as a model; 0 where that is little.",
			func(d disk) float64 { return float64(d.NeedBytes) }),
		gauges("gradbus_disk_sample_age_seconds", "Time since the file system last answered.", nil, func(d disk, r *row) {
			if d.SampleMS > 0 {
				r.value(max(0, float64(d.now.UnixMilli()-d.SampleMS)/1000))
			}
		}),
	}}
}

// writeDisks puts file systems on a sheet, each path of a machine once.
func (e *Exporter) writeDisks(s *sheet, of *schema.Telemetry, disks []schema.DiskReport, now time.Time) {
	for i := range disks {
		e.tables.disk.write(s, disk{&disks[i], now}, of.Host, disks[i].Path)
	}
}
