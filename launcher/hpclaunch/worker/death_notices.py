"""Death notices: signed answers with which an agent's own host confirms that the agent is dead.

Only the host of an agent can know whether it is dead. A refused connection proves nothing, since a
firewall or a router may refuse connections to living agents. So each agent leaves a notice with its
fork server, and a secret that is derived for that notice. Once the agent is dead and its workers
are killed, the fork server listens where the agent did (`notice_board.py`). It answers each
question of other agents (`system/network/death_inquiries.py`) with the notice and a signature of
the question. No two questions are the same, so nobody can repeat an earlier answer.

Functions here import hmac only when it is needed: it loads OpenSSL, which an agent that is alone
does not need.
"""

from __future__ import annotations

import os

LONGEST = 512  # bytes of an answer
_QUESTION = b"\xff?"  # the first 2 of a question's 10 bytes; no real greeting has a "?" there
_WORDS = "hpclaunch: dead:"


def new_question() -> bytes:
    """Return a new question. It begins like a ZeroMQ greeting, so a living agent treats it like any
    connection that closes before it has authenticated itself."""
    return _QUESTION + os.urandom(7) + b"\x7f"


def is_question(received: bytes) -> bool:
    return len(received) == len(_QUESTION) + 8 and received.startswith(_QUESTION)


def notice(agent: int, incarnation: str) -> str:
    return f"{_WORDS} {agent} {incarnation}"


def notice_secret(key: bytes, text: bytes) -> bytes:
    """Return the secret with which the host that keeps this notice signs questions."""
    return _digest(key, text)


def signed_answer(text: bytes, secret: bytes, question: bytes) -> bytes:
    """Return the answer to a question: the notice, and a signature of the question."""
    return b"%b %b\n" % (text, _digest(secret, question).hex().encode())


def proves_death(
    answer: bytes, question: bytes, key: bytes, agent: int, incarnation: str = ""
) -> bool:
    """Return whether an answer to this question proves that an agent is dead: the one with this
    index, or if its incarnation is known, with that incarnation.

    Anybody may have sent the answer, so its text is used only after its signature is verified."""
    import hmac

    text = answer.rpartition(b" ")[0]
    expected = signed_answer(text, notice_secret(key, text), question)
    if not hmac.compare_digest(answer, expected):
        return False
    words = f"{_WORDS} ".encode()
    if incarnation:
        return text.startswith(words) and text.endswith(f" {incarnation}".encode())
    return text.startswith(words + f"{agent} ".encode())


def release_word(key: bytes, agent: int) -> str:
    """Return the word that takes down the notice of a restarted agent's predecessor."""
    return _digest(key, f"release {agent}".encode()).hex()


def _digest(key: bytes, text: bytes) -> bytes:
    import hmac

    return hmac.digest(key, text, "sha256")
