// Holder::Start, in order: checks the options; opens the chunk store, which reads its folder; pins
// memory for a device (PinFor); listens on every fabric; starts the dispatcher, whose thread owns
// the lanes. TryOpenSession, on the caller's thread: refuses while draining or without a lease, or
// for another geometry; tries the offered fabrics in their order: TryOffer opens a session and
// invites its lanes. State's members are in the order of their use, so that destruction ends the
// dispatcher first.

#include "server/holder/holder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/worker_pool.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "server/batch/cold_rows.h"
#include "server/batch/shadow_codec.h"
#include "server/batch/sparse_layer.h"
#include "server/batch/stripe_cache.h"
#include "server/dispatch/dispatcher.h"
#include "server/holder/backend_memory.h"
#include "server/session/session.h"
#include "store/chunk_store.h"
#include "store/memory/huge_pages.h"
#include "transport/wire.h"

namespace ckv {
namespace {

// Together with ColdRowBytesMax and StripeBytesMax, keeps a holder within capacity_bytes plus an
// eighth.
constexpr uint64_t kMapShareOfCapacity = 16;

absl::Status ValidateOptions(const HolderOptions& options) {
  const auto in = [](std::string_view what, uint64_t value, uint64_t limit) {
    if (value >= 1 && value <= limit) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("holder: %s is %d, must be 1 to %d", what, value, limit));
  };
  if (options.fabrics.empty()) return absl::InvalidArgumentError("holder: no fabric");
  if (!HolderMemory(options.backend->reach())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "holder: its chunks and lanes are in memory of the host, pinned or not, which kernels of "
        "%s do not reach",
        options.backend->kernel_target()));
  }
  if (options.spin_max < Duration(0)) return absl::InvalidArgumentError("holder: spin_max < 0");
  CKV_RETURN_IF_ERROR(in("compute_threads", options.compute_threads, WorkerPool::kThreadCountMax));
  CKV_RETURN_IF_ERROR(in("session_count_max", options.session_count_max, kSessionCountMax));
  CKV_RETURN_IF_ERROR(in("chunk_count_max", options.chunk_count_max, kChunkCountMax));
  CKV_RETURN_IF_ERROR(
      in("queue_request_count_max", options.queue_request_count_max, kQueueRequestCountMax));
  return in("batch_request_count_max", options.batch_request_count_max, kBatchRequestCountMax);
}

absl::Status ValidateOffer(const SessionOffer& offer) {
  CKV_RETURN_IF_ERROR(ValidateGeometry(offer.geometry));
  CKV_RETURN_IF_ERROR(ValidateLaneShape(offer.shape));
  // Smaller slots could not even carry an error.
  const uint32_t reply_bytes_min = sizeof(ReplyHeader) + kErrorTextBytesMax;
  if (offer.shape.request_bytes_max < sizeof(RequestHeader) ||
      offer.shape.reply_bytes_max < reply_bytes_min) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "slots of %d and %d bytes, at least %d and %d are needed", offer.shape.request_bytes_max,
        offer.shape.reply_bytes_max, sizeof(RequestHeader), reply_bytes_min));
  }
  if (offer.tenant.size() > kCorpusNameBytesMax || offer.requester.size() > kCorpusNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tenant or requester: over %d characters", kCorpusNameBytesMax));
  }
  for (const FabricOffer& fabric : offer.fabrics) {
    if (fabric.offers.empty() || fabric.offers.size() > kLaneCountMax) {
      return absl::InvalidArgumentError(absl::StrFormat("%d lanes of one fabric, must be 1 to %d",
                                                        fabric.offers.size(), kLaneCountMax));
    }
    for (const std::string& bytes : fabric.offers) {
      if (bytes.size() <= kOfferBytesMax) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("offer of %d bytes, limit %d", bytes.size(), kOfferBytesMax));
    }
  }
  return absl::OkStatus();
}

void LogFound(const HolderOptions& options, const ScanReport& found) {
  if (options.store_path.empty()) return;
  Log().info("{}: {} chunks in {}, {} unfinished ones removed", options.id.name, found.chunk_count,
             options.store_path, found.unfinished_count);
  if (found.quarantined_count > 0) {
    Log().error(
        "{}: {} files were damaged or foreign and are in {}/quarantine now, each with its "
        "reason; the first: {}",
        options.id.name, found.quarantined_count, options.store_path, found.first_quarantined);
  }
  if (found.refused_count > 0) {
    Log().error("{}: {} chunk files are of a later version of ckv and are not served",
                options.id.name, found.refused_count);
  }
}

// Ids of one call: a corpus at most.
absl::Status CheckIdCount(size_t count) {
  if (count <= kSessionHandleCountMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%d chunk ids at once, limit %d", count, kSessionHandleCountMax));
}

}  // namespace

struct Holder::State {
  State(const HolderOptions& options_in, std::unique_ptr<ChunkStore> store_in)
      : options(options_in),
        store(std::move(store_in)),
        sessions(options.session_count_max, options.lane_bytes_max) {}

  // Requires the same geometry (I7). An empty store has none yet, and accepts any.
  absl::Status CheckGeometry(const Geometry& geometry) {
    const std::vector<Geometry> here = store->table().geometries().InUse();
    if (here.empty() || std::find(here.begin(), here.end(), geometry) != here.end()) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrFormat("geometry differs: %s", DescribeDifference(here.front(), geometry)));
  }

  // Makes the chunks, the rows from disk and the lanes' slots memory of this kind.
  absl::Status PinFor(MemoryKind kind, ListenOptions& listen);
  uint64_t StripeBytes(MemoryKind kind) const;

  absl::StatusOr<SessionAnswer> TryOffer(const SessionOffer& offer, const FabricOffer& fabric);
  absl::StatusOr<std::vector<std::string>> Invite(const SessionOffer& offer,
                                                  const FabricOffer& fabric, Listener& listener,
                                                  const SessionTable::Opened& session,
                                                  Instant until);

  const HolderOptions options;
  const std::string host_identity = HostIdentity();
  LeaseGate lease;
  // Updated by any thread. For display only: it orders no other accesses.
  std::array<std::atomic<uint64_t>, kStatusCodeCount> session_refusals{};
  ScrubCounters scrub;
  // From here on, each member uses those above it.
  std::unique_ptr<ChunkStore> store;
  PinnedMemory chunks_pinned;
  std::optional<PagedMemory> cold_memory;
  std::span<std::byte>
      cold_buffer;  // all of it, for rows from disk; empty unless chunks are pinned
  PinnedMemory cold_pinned;
  SessionTable sessions;
  std::vector<std::unique_ptr<Listener>> listeners;
  std::unique_ptr<Dispatcher> dispatcher;
};

absl::Status Holder::State::PinFor(MemoryKind kind, ListenOptions& listen) {
  const std::span<const std::byte> memory = store->memory();
  listen.gather_regions = {{RegionType::kHost, memory}};
  if (kind == MemoryKind::kHost) return absl::OkStatus();
  const auto pinner = std::make_shared<PinnerOf<Backend>>(options.backend);
  listen.gather_regions = {{RegionType::kPinned, memory}};
  listen.slot_pinner = pinner;
  const auto pin = [&](std::string_view what, std::byte* data, size_t bytes, PinnedMemory& pinned) {
    auto made = PinnedMemory::Pin(pinner, {data, SparseLayer::WholePages(bytes)});
    if (made.ok()) {
      pinned = *std::move(made);
      return absl::OkStatus();
    }
    return Annotate(made.status(),
                    absl::StrFormat("holder: pinning %s, %d MiB, for kernels of %s (lower "
                                    "store.capacity, or let the process lock more memory: "
                                    "ulimit -l, LimitMEMLOCK)",
                                    what, bytes >> 20, options.backend->kernel_target()));
  };
  // The cast only drops const: pinning writes nothing.
  CKV_RETURN_IF_ERROR(
      pin("store.capacity", const_cast<std::byte*>(memory.data()), memory.size(), chunks_pinned));
  if (options.store_path.empty()) return absl::OkStatus();
  const size_t buffer_bytes = SparseLayer::WholePages(ColdRowBytesMax(memory.size()));
  CKV_ASSIGN_OR_RETURN(cold_memory, PagedMemory::Map(buffer_bytes, PagePolicy::kSmall));
  cold_buffer = {cold_memory->base(), buffer_bytes};
  return pin("the room for rows from disk", cold_memory->base(), buffer_bytes, cold_pinned);
}

// Returns the limit for stripes kept for selections. Their memory is added and freed by pages, so
// it is not pinned.
uint64_t Holder::State::StripeBytes(MemoryKind kind) const {
  if (kind != MemoryKind::kHost) return 0;
  return options.stripe_bytes_max.value_or(StripeBytesMax(options.capacity_bytes));
}

absl::StatusOr<std::unique_ptr<Holder>> Holder::Start(const HolderOptions& options) {
  CKV_RETURN_IF_ERROR(ValidateOptions(options));
  const ChunkStoreOptions store_options = {.capacity_bytes = options.capacity_bytes,
                                           .pages = options.pages,
                                           .chunk_count_max = options.chunk_count_max,
                                           .path = options.store_path,
                                           .files = options.store_files,
                                           .shadow_bytes_max = options.shadow_bytes_max,
                                           .shadow_codec = Fp8ShadowCodec(),
                                           .clock = options.clock};
  ScanReport found;
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<ChunkStore> store, ChunkStore::Open(store_options, &found));
  LogFound(options, found);
  Log().info("{}: {} MiB for rows in {}", options.id.name, options.capacity_bytes >> 20,
             PageKindName(store->page_kind()));
  auto state = std::make_unique<State>(options, std::move(store));
  std::vector<Listener*> listeners;
  ListenOptions listen = options.listen;
  const MemoryKind chunk_memory = *HolderMemory(options.backend->reach());
  CKV_RETURN_IF_ERROR(state->PinFor(chunk_memory, listen));
  for (Fabric* fabric : options.fabrics) {
    CKV_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, fabric->Listen(listen));
    listeners.push_back(listener.get());
    state->listeners.push_back(std::move(listener));
  }
  const DispatcherOptions dispatcher = {
      .clock = options.clock,
      .backend = options.backend,
      .compute_threads = options.compute_threads,
      .batch_request_count_max = options.batch_request_count_max,
      .queue_request_count_max = options.queue_request_count_max,
      .map_bytes_max = options.map_bytes_max.value_or(options.capacity_bytes / kMapShareOfCapacity),
      .stripe_bytes_max = state->StripeBytes(chunk_memory),
      .candidate_bytes_max = options.candidate_bytes_max,
      .spin_max = options.spin_max,
      .chunk_memory = chunk_memory,
      .cold_buffer = state->cold_buffer,
      .spans = options.spans};
  CKV_ASSIGN_OR_RETURN(state->dispatcher,
                       Dispatcher::Start(dispatcher, state->store.get(), &state->sessions,
                                         &state->lease, std::move(listeners)));
  return std::unique_ptr<Holder>(new Holder(std::move(state)));
}

Holder::Holder(std::unique_ptr<State> state) : state_(std::move(state)) {}
Holder::~Holder() = default;

absl::StatusOr<SessionAnswer> Holder::OpenSession(const SessionOffer& offer, Instant deadline) {
  absl::StatusOr<SessionAnswer> answer = TryOpenSession(offer, deadline);
  if (!answer.ok()) {
    const auto code = static_cast<size_t>(answer.status().code());
    state_->session_refusals[code].fetch_add(1, std::memory_order_relaxed);
  }
  return answer;
}

absl::StatusOr<SessionAnswer> Holder::TryOpenSession(const SessionOffer& offer, Instant deadline) {
  State& state = *state_;
  const Instant now = state.options.clock->Now();
  if (now >= deadline) return absl::DeadlineExceededError("the deadline had passed on arrival");
  if (state.dispatcher->draining()) return absl::UnavailableError("the holder is draining");
  CKV_ASSIGN_OR_RETURN(const uint16_t wire_version,
                       CommonWireVersion(offer.wire_version_min, offer.wire_version_max));
  CKV_RETURN_IF_ERROR(ValidateOffer(offer));
  if (!state.lease.LiveAt(now)) return absl::UnavailableError("no live lease");
  CKV_RETURN_IF_ERROR(state.CheckGeometry(offer.geometry));
  std::string refusals;
  for (const FabricOffer& fabric : offer.fabrics) {
    absl::StatusOr<SessionAnswer> answer = state.TryOffer(offer, fabric);
    if (answer.ok()) answer->wire_version = wire_version;
    if (answer.ok() || absl::IsResourceExhausted(answer.status())) return answer;
    refusals += absl::StrFormat("%s%s: %s", refusals.empty() ? "" : "; ", FabricName(fabric.fabric),
                                std::string(answer.status().message()));
  }
  return absl::UnavailableError(
      absl::StrFormat("none of the offered fabrics reaches this peer (%s)",
                      refusals.empty() ? "none offered" : refusals));
}

absl::StatusOr<SessionAnswer> Holder::State::TryOffer(const SessionOffer& offer,
                                                      const FabricOffer& fabric) {
  if (fabric.fabric == FabricKind::kShm && offer.host_identity != host_identity) {
    return absl::UnavailableError("another host");
  }
  const auto listener =
      std::find_if(listeners.begin(), listeners.end(),
                   [&](const std::unique_ptr<Listener>& l) { return l->kind() == fabric.fabric; });
  if (listener == listeners.end()) return absl::UnavailableError("not enabled on this holder");
  const Epoch epoch = lease.epoch();
  const Instant until = options.clock->Now() + kInvitationLifetime;
  CKV_ASSIGN_OR_RETURN(
      const SessionTable::Opened session,
      sessions.Open(offer, static_cast<uint32_t>(fabric.offers.size()), epoch, until));
  absl::StatusOr<std::vector<std::string>> answers =
      Invite(offer, fabric, **listener, session, until);
  if (!answers.ok()) {
    // Invitations made already lead to a closed session, and expire.
    sessions.Close(session.id).IgnoreError();  // NotFound: it has already ended
    dispatcher->Wake();
    return answers.status();
  }
  dispatcher->Wake();
  std::vector<FabricKind> kinds;
  for (const std::unique_ptr<Listener>& l : listeners) kinds.push_back(l->kind());
  return SessionAnswer{.session = session.id,
                       .epoch = epoch,
                       .fabric = fabric.fabric,
                       .answers = *std::move(answers),
                       .fabrics = kinds,
                       .host = {.identity = host_identity,
                                .processors = ProcessorCount(),
                                .compute_threads = options.compute_threads}};
}

absl::StatusOr<std::vector<std::string>> Holder::State::Invite(const SessionOffer& offer,
                                                               const FabricOffer& fabric,
                                                               Listener& listener,
                                                               const SessionTable::Opened& session,
                                                               Instant until) {
  std::vector<std::string> answers;
  for (uint32_t lane = 0; lane < fabric.offers.size(); ++lane) {
    CKV_ASSIGN_OR_RETURN(std::string answer,
                         listener.Invite(fabric.offers[lane], offer.shape, offer.tenant,
                                         SessionTable::LaneTag(session, lane), until));
    answers.push_back(std::move(answer));
  }
  return answers;
}

absl::Status Holder::CloseSession(SessionId session, Instant /*deadline*/) {
  CKV_RETURN_IF_ERROR(state_->sessions.Close(session));
  state_->dispatcher->Wake();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> Holder::ResolveChunks(
    SessionId session, std::span<const ChunkId> ids, Instant /*deadline*/) {
  CKV_RETURN_IF_ERROR(CheckIdCount(ids.size()));
  CKV_ASSIGN_OR_RETURN(const Geometry geometry, state_->sessions.GeometryOf(session));
  CKV_ASSIGN_OR_RETURN(const std::string tenant, state_->sessions.TenantOf(session));
  const ChunkTable& table = state_->store->table();
  const Geometry* const interned = table.geometries().Find(geometry);
  std::vector<std::optional<ResolvedHandle>> resolved(ids.size());
  std::vector<SessionTable::Found> found;
  std::vector<size_t> ordinals;
  for (size_t i = 0; i < ids.size(); ++i) {
    const absl::StatusOr<ChunkLocator> locator =
        table.Find(ids[i], interned == nullptr ? geometry : *interned, tenant);
    if (!locator.ok()) continue;
    const absl::StatusOr<ChunkSummary> chunk = table.Describe(*locator);
    if (!chunk.ok()) continue;
    resolved[i] = ResolvedHandle{.handle = {}, .token_count = chunk->token_count};
    found.push_back({ids[i], *locator});
    ordinals.push_back(i);
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<ChunkHandle> handles,
                       state_->sessions.AssignHandles(session, found));
  for (size_t i = 0; i < handles.size(); ++i) resolved[ordinals[i]]->handle = handles[i];
  return resolved;
}

const ChunkTable& Holder::table() const { return state_->store->table(); }
ChunkStore& Holder::store() { return *state_->store; }
LeaseGate& Holder::lease() { return state_->lease; }
ScrubCounters& Holder::scrub_counters() { return state_->scrub; }
std::string_view Holder::kernel_target() const { return state_->options.backend->kernel_target(); }

void Holder::Drain(Instant deadline) { state_->dispatcher->Drain(deadline); }

uint64_t Holder::turn_count() const {
  return state_->dispatcher->counters().turn_count.load(std::memory_order_relaxed);
}

BatchSums Holder::batch_sums() const { return state_->dispatcher->counters().load.sums(); }

std::vector<ChunkId> Holder::TakeSampledChunks() {
  std::vector<ChunkId> ids;
  for (const ChunkLocator chunk : state_->dispatcher->TakeSampledChunks()) {
    const auto summary = table().Describe(chunk);
    if (summary.ok()) ids.push_back(summary->id);  // it may be dropped by now
  }
  return ids;
}

HolderStats Holder::stats() const {
  const ServeCounters& counters = state_->dispatcher->counters();
  const auto read = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  const auto sum = [](const auto& values) {
    return std::accumulate(values.begin(), values.end(), decltype(values[0] + 0){0});
  };
  const auto lanes = ReadAll(counters.lanes);
  const StatusCounts errors = ReadAll(counters.errors);
  const RefusalCounts refusals = ReadAll(counters.refusals);
  const auto refused = [&](Refusal why) { return refusals[static_cast<size_t>(why)]; };
  const ChunkStoreStats store = state_->store->stats();
  return {.table = store.table,
          .load_count = store.load_count,
          .load_bytes = store.load_bytes,
          .healed_count = store.healed_count,
          .damaged_count = store.damaged_count,
          .shadow_count = store.shadow_count,
          .scrub = ReadAll(state_->scrub),
          .store_errors = store.errors,
          .session_count = state_->sessions.count(),
          .lane_count = sum(lanes),
          .lanes = lanes,
          .session_refusals = ReadAll(state_->session_refusals),
          .request_count = read(counters.request_count),
          .query_row_count = read(counters.query_row_count),
          .batch_count = read(counters.batch_count),
          .long_count = read(counters.long_count),
          .push_count = read(counters.push_count),
          .push_bytes = read(counters.push_bytes),
          .map_count = read(counters.map_count),
          .score_count = read(counters.score_count),
          .score_key_count = read(counters.score_key_count),
          .cold_count = read(counters.cold_count),
          .stripe_hit_count = read(counters.stripe_hit_count),
          .stripe_read_count = read(counters.stripe_read_count),
          .stripe_bytes = read(counters.stripe_bytes),
          .approximate_count = read(counters.approximate_count),
          .error_count = sum(errors),
          .errors = errors,
          .expired_count = read(counters.expired_count),
          .refused_count = refused(Refusal::kQueueFull) + refused(Refusal::kQueueWork) +
                           refused(Refusal::kNoTime),
          .refusals = refusals,
          .queues = ReadDepths(counters),
          .sleep_count = read(counters.sleep_count),
          .bytes_in = read(counters.bytes_in),
          .bytes_out = read(counters.bytes_out),
          .compute_ns = read(counters.compute_ns),
          .latency = ReadLatency(counters)};
}

}  // namespace ckv
