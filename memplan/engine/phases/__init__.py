"""The moments beside the steady step at which jobs die: load, first step, save, the merge of an adapter, the sync of an
engine's weights. (Evaluation is ``engine/step_and_evaluation``.)

Each has instants and rows of its own, on the card, in the host memory of every process (place ``host``), and once in
that of a node (place ``node``: of the process that gathers or writes). ``registry`` puts them together."""
