"""The files that people already have, and the files that they can run: one file of this folder per framework, or a
folder with a ``reader``. What serves all of them has rooms of its own: ``files`` (what lies on disk), ``shell`` and
``commands`` (what starts a training), ``programs`` (Python), ``project`` (what lies around a file), ``common`` (what
several say alike), ``checks`` (answers), ``emit`` and ``own_words`` (what is written)."""
