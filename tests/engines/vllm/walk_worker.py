"""A worker without a model: its blocks hold names in place of rows, so any wrong row is noticed.

A row's name is a hash of the corpora before its request's position 0 and of all tokens up to the row: all that
determines a latent row. A step checks the names of all rows that it attends before it writes its own.
"""

import types

import numpy as np

from ckv_vllm import counts, worker_side

BLOCK = 16
CHUNK = 32  # tokens of a chunk here
RULE_CORPUS = "prompts"
BAD = 0     # the name of a row that no request may attend
COUNTED = ("routed", "route_failed", "refused", "loaded", "load_failed", "waited", "published", "published_by_rule", "shared", "tainted", "preempted", "aborted",
           "aborted_while_loading", "turned_off")


class Broken(AssertionError):
    """An invariant does not hold."""


def require(holds, *what):
    if not holds:
        raise Broken(" ".join(map(str, what)))


def names_of(corpora, tokens, known=()):
    """The names of rows, one per token. `known`: those of the first tokens."""
    names = list(known)
    last = names[-1] if names else hash(("corpora", corpora)) | 1
    for token in tokens[len(names):]:
        last = hash((last, token)) | 1
        names.append(last)
    return names


class Store:
    """The chunks on holders, by id, of prefixes that were published."""

    def __init__(self):
        self.chunks = {}

    @staticmethod
    def id_of(names):
        return int(names[-1]).to_bytes(8, "little", signed=True) * 4

    def publish(self, names):
        for end in range(CHUNK, len(names) + 1, CHUNK):
            self.chunks[self.id_of(names[:end])] = names[end - CHUNK:end]

    def prefix(self, tokens):
        """(tokens, ids) of the longest prefix whose chunks are stored."""
        names, ids = names_of((), tokens), b""
        for end in range(CHUNK, len(names) + 1, CHUNK):
            one = self.id_of(names[:end])
            if one not in self.chunks:
                break
            ids += one
        return len(ids) // 32 * CHUNK, ids


class Load:
    """An asynchronous load. It writes some of its rows at a time, and ends complete or failed."""

    def __init__(self, note, names, whole):
        self.note, self.names, self.whole, self.at = note, names, whole, note.token_begin


class Worker:
    """One rank. `manager`: vLLM's own, which has the blocks of each request."""

    def __init__(self, block_count, rng, store, manager):
        self.rng, self.store, self.manager = rng, store, manager
        self.memory = [[BAD] * BLOCK for _ in range(block_count)]
        self.tables, self.tokens = {}, {}
        self.loads, self.loaded, self.published = {}, {}, set()
        self.wants = {}   # request: its record (Asked), for each request that was admitted
        self.counts = dict.fromkeys(COUNTED, 0)
        # The connector's own code names the blocks of a failed route.
        self._side = types.SimpleNamespace(caches={0: np.empty((1, BLOCK, 1))}, _failed={}, step=None,
                                           counts=counts.Counts(),
                                           contexts=types.SimpleNamespace(failed=lambda route: None))

    def step(self, output, step):
        """Runs a scheduled step. Returns (sampled tokens by request, failed, {ended load: reason}, failed requests)."""
        self._take_tables(output)
        self._side.step = step
        routes = {route.request_id: (block, route) for block, route in step.routes.items()}
        computed = dict(zip(output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens))
        computed.update({one.req_id: one.num_computed_tokens for one in output.scheduled_new_reqs})
        spoiled, written = set(), set()
        for request_id, count in output.num_scheduled_tokens.items():
            begin = computed[request_id]
            failed = self._forward(request_id, begin, begin + count, routes.pop(request_id, None), step, written)
            if failed:
                spoiled.add(request_id)
        require(not routes, "routes of requests that are not scheduled:", list(routes))
        for note in step.publishes:
            self._publish(note)
        for note in step.loads:
            self._begin_load(note)
        ended = self._go_on_loading()
        sampled = {}
        for request_id, count in output.num_scheduled_tokens.items():
            if computed[request_id] + count >= len(self.tokens[request_id]):
                sampled[request_id] = [self.rng.randrange(4)]
                self.tokens[request_id] += sampled[request_id]
        return sampled, worker_side.WorkerSide.take_failed(self._side), ended, spoiled

    def _take_tables(self, output):
        """Keeps block tables as vLLM's runner does."""
        for one in output.scheduled_new_reqs:
            self.tables[one.req_id] = list(one.block_ids[0])
            self.tokens[one.req_id] = list(one.prefill_token_ids or one.prompt_token_ids)
        cached = output.scheduled_cached_reqs
        for request_id, new in zip(cached.req_ids, cached.new_block_ids):
            if request_id in cached.resumed_req_ids:
                self.tables[request_id] = list(new[0])
            elif new:
                self.tables[request_id] += new[0]
            if request_id in cached.all_token_ids:
                self.tokens[request_id] = list(cached.all_token_ids[request_id])

    def _forward(self, request_id, begin, end, routed, step, written):
        """Writes rows [begin, end). Returns whether they are wrong, and the connector reports them."""
        table, asked = self.tables[request_id], self.wants[request_id]
        refused = request_id in step.refused
        require(refused or not asked.bad, request_id, "was not refused")
        self.counts["refused"] += refused
        if refused and asked.salted:  # only other refused requests share these blocks
            return True
        # Without a salt and a route, vLLM computes rows from the tokens alone.
        names = names_of(() if refused else asked.corpora, self.tokens[request_id][:end])
        tainted = False
        for at in range(begin):
            row = table[at // BLOCK], at % BLOCK
            if row in written and self.memory[row[0]][row[1]] == BAD:  # it shares a block that fails in this step
                tainted = True
                self.counts["tainted"] += 1
                break
            require(self.memory[row[0]][row[1]] == names[at],
                    request_id, asked, "attends a row that is not its own, at", at, "of", begin, "block",
                    table[at // BLOCK], "which holds", self.memory[table[at // BLOCK]])
        require((routed is not None) == bool(asked.corpora and not refused), request_id, "routed:", routed, asked)
        fails = False
        if routed is not None:
            block, route = routed
            used = (end + BLOCK - 1) // BLOCK
            require(block == table[used - 1] and route.block_ids[:used] == table[:used] and route.token_end == end
                    and tuple(one[0] for one in route.corpora) == asked.corpora, request_id, "has the note", route)
            fails = tainted or self.rng.random() < asked.fails
            self.counts["route_failed" if fails else "routed"] += 1
            if fails and not tainted:  # the connector does not notice a tainted one
                worker_side.WorkerSide.failed(self._side, route, end - begin, "lost")
        for at in range(begin, end):
            block = table[at // BLOCK]
            require((block, at % BLOCK) not in written, "two requests write one row")
            written.add((block, at % BLOCK))
            self.memory[block][at % BLOCK] = BAD if fails or tainted else names[at]
        return fails or refused or tainted

    def _publish(self, note):
        asked = self.wants[note.request_id]
        by_rule = note.corpus == RULE_CORPUS and not asked.corpora
        self.counts["published_by_rule"] += by_rule
        require(note.tokens == self.tokens[note.request_id][:len(note.tokens)], note.request_id, "publishes", note.tokens)
        require((asked.publish or by_rule) and note.request_id not in self.published, note.request_id, "publishes again or unasked")
        names = names_of((), note.tokens)
        rows = [self.memory[note.block_ids[at // BLOCK]][at % BLOCK] for at in range(len(names))]
        require(rows == names, note.request_id, "publishes rows that are not its prompt's")
        self.published.add(note.request_id)
        self.counts["published"] += 1
        self.store.publish(names)

    def _begin_load(self, note):
        require(note.request_id not in self.loads, note.request_id, "is loaded twice at once")
        require(not self.wants[note.request_id].corpora, note.request_id, "is routed, and loaded")
        require(note.token_begin < note.token_end and note.token_end % BLOCK == 0, "a load of", note)
        ids = [note.chunk_ids[at:at + 32] for at in range(0, len(note.chunk_ids), 32)]
        names = [name for one in ids for name in self.store.chunks.get(one, [BAD] * CHUNK)]
        require(len(names) >= note.token_end, "chunks of", len(names), "tokens for", note.token_end)
        self.loads[note.request_id] = Load(note, names, self.rng.random() > 0.2)

    def _go_on_loading(self):
        """Writes a little of each load. Returns {request: why it failed, or ""} of those that end."""
        ended = {}
        for request_id, load in list(self.loads.items()):
            held = self.manager.get_block_ids(request_id)[0]
            note = load.note
            require(held[:len(note.block_ids)] == note.block_ids, request_id, "is loaded into", note.block_ids,
                    "and has", held)
            until = min(note.token_end, load.at + self.rng.choice((0, 8, 40, 500)))
            for at in range(load.at, until):
                self.memory[note.block_ids[at // BLOCK]][at % BLOCK] = load.names[at] if load.whole else BAD
            load.at = until
            if until == note.token_end and self.rng.random() < 0.7:
                del self.loads[request_id]
                ended[request_id] = "" if load.whole else "lost"
                self.counts["loaded" if load.whole else "load_failed"] += 1
        return ended


