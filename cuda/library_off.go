package cuda

// nativeMaps are the operations of the native library where there is one.
func nativeMaps(string) maps { return goMaps{} }

// openProducts opens a library of the system.
func openProducts(Backend, string) (products, error) { return nil, ErrNoBackend }
