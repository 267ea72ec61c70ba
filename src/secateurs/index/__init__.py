"""The index: a folder of immutable segments. `storage` has the layout, `index` the class that users hold."""
