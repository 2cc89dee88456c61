"""The page that answers as one types, from this machine or without a server.

``answers`` says what is asked and what is answered, in any interpreter, that of a browser too. From this machine
``server`` puts it behind HTTP, each call in a process (``worker``) that opens no file but those it was sent
(``worker``); without one, ``build`` writes a folder of files in which the engine itself runs in the browser."""
