"""The lengths that come: what a job needs of batches drawn from its data set, as its trainer makes them.

``distribution``: lengths as they are given, and what is drawn of them; ``files``: files of lengths; ``packing``: rows
made of several sequences; ``batches``: what a trainer makes of a micro-batch; ``runs``: steps drawn, their peaks, and
whether a run dies; ``playing``: the caching allocator over steps of changing shapes; ``dataset``, ``chat``,
``tokens``: the file of lengths, made of a data set."""
