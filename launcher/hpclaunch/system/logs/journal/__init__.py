"""The journal of one agent: all that its core was told and answered, so that a run of it can be
replayed through the core on another day and another machine.

One JSON object per line. `now` is the monotonic time that the core was given, `time` that of the
wall clock.

    {"time", "now", "note": "core", "with": {...}}       how the core was made; a run begins
    {"time", "now", "event": NAME, "with": {...}}        what the core was told,
    {"time", "now", "effect": NAME, "with": {...}}       what it answered, in order
    {"time", "now", "note": NAME, "with": ...}           something else that an incident may need
    {"now", "beats": [[now, checksum], [now, checksum, sender, {...}], ...]}
    {"time", "now", "state": {...}}                      the whole core, before the next event

`with` has the fields of the event or effect, and `of` names the type of the message in it.

A job that runs does nothing but beat. Beats are ticks and messages that repeat the last one of the
same sender but for the fields shown, and whose effects are repetitions as well; of these, the
checksum is kept. As long as there is nothing else, beats are held back, and only those of the last
minute or so are written once something happens, after the state that they begin with. So a journal
does not grow while nothing happens, and is replayable from each state on.
"""
