"""memplan for agents: tools of a server that speaks the Model Context Protocol over standard input and output.

``tools`` says what each takes and answers, ``worker`` runs one call in a process of its own, which may open no file
but those ``within`` allows, and ``server`` (the only place that imports the SDK) puts the two behind the protocol."""
