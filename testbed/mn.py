"""Our fabrics in Mininet's own command: `sudo .venv/bin/mn --custom testbed/mn.py --topo rails`.

Options as for fluxbed: `rails,nodes=4,planes=2,delay=1ms` (nodes defaults to 4). Every plane
starts with its ports joined in pairs: see `testbed.emulator.mininet_topology`.
"""

from testbed.emulator.mininet_nodes import CircuitNet
from testbed.emulator.mininet_topology import topologies_for_mn

topos = topologies_for_mn()
Mininet = CircuitNet  # the name `mn` builds its network by
