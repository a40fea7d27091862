"""How the runs of a grid are done: by processes here, or by Ray on a cluster.

`schedule.run` decides what is done and stores what comes out. An engine does one task at a time in
each of its slots, and tells what happens; it knows nothing of the store.
"""
