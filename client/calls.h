// The arguments and reports of a requester's calls, as structs. client/requester.h declares the
// calls; everything below it includes this file instead.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "attention/precision.h"
#include "proto/base/clock.h"
#include "proto/base/trace_context.h"
#include "proto/chunk_layout.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/index_query.h"
#include "proto/kernel_target.h"
#include "proto/selection.h"

namespace ckv {

// The largest offset and position. It is beyond any context, and the difference of two still fits
// an int64_t.
inline constexpr int64_t kOffsetMax = int64_t{1} << 40;

// One chunk of a call, and its distance from its canonical position in this request's context. Its
// queries are rotated by -offset. Chunks with the same offset share one rotated copy of the
// queries.
struct ChunkUse {
  uint32_t ordinal = 0;  // ordinal in the corpus
  int64_t offset = 0;    // in positions, from -kOffsetMax to kOffsetMax
};

// The most selected indices of one call: 2,048 rows for each of 8,192 tokens.
inline constexpr uint64_t kSelectionIndexCountMax = uint64_t{1} << 24;

// The most corpora of one context.
inline constexpr uint32_t kContextPartCountMax = 16;

// The chunks of one corpus that a context attends. Borrowed while the context is opened.
struct ContextPart {
  std::shared_ptr<const Corpus> corpus;
  // If empty, every chunk of the corpus at its canonical position. A chunk listed twice is
  // InvalidArgument.
  std::span<const ChunkUse> chunks;
};

// The caller's own rows, for example a sequence's suffix. They are attended on the caller's thread
// while the holders compute, and are never sent. Their RoPE bands are at the positions that the
// query rows count from, as in the caller's own cache; nothing is rotated. Borrowed until the call
// ends.
struct OwnRows {
  // Rows of the context's geometry and the call's layer. They may be in blocks of the caller's
  // paged cache, and are then attended in place (attention/partial.h). Every block in the table is
  // below block_count.
  RowView rows;
  // u32 [segment's row_count]: query row i sees the first visible[i] rows. If null, every query row
  // sees all.
  const uint32_t* visible = nullptr;
  uint32_t block_count = 0;  // blocks of the cache that holds paged rows
  // If present, only these of the rows are attended (proto/selection.h). Groups count the segment's
  // query rows. Indices outside the rows are skipped.
  Selection selection = {};
};

inline constexpr size_t kOwnRowsCountMax = 16;

// Limits query rows to the first rows of a context, counted as a selection counts them. A causal
// mask is one example. Borrowed.
//
// The answer is exact. A chunk that a query row sees entirely is attended as without a limit. A
// chunk that contains a limit is attended as a selection of its first rows: 4 bytes per row are
// sent with the queries. Consecutive query rows with the same limit are one segment on the wire,
// with 32 bytes for each chunk that it sees. So one limit for all heads of a token costs less than
// one per row.
struct RowLimits {
  // [ceil(rows / group_rows)]: query rows of group g see the rows before limits[g]; 0 means none. A
  // limit beyond the context is InvalidArgument, and so are limits together with a selection.
  const uint32_t* limits = nullptr;
  uint32_t group_rows = 1;  // query rows that share a limit, like the heads of one token

  bool present() const { return limits != nullptr; }
};

class Context;    // client/context.h
class RowChoice;  // client/row_choice.h

// The rows that each query row attends, as Requester::ChooseRows chose them. Borrowed until Submit
// returns.
struct SegmentChoice {
  const RowChoice* rows = nullptr;
  // Query rows of group g attend the rows of token token_begin + g.
  uint32_t token_begin = 0;
  uint32_t group_rows = 1;  // query rows of one token: its heads
};

// Consecutive query rows of one context.
struct Segment {
  uint32_t row_begin = 0;
  uint32_t row_count = 0;
  const Context* context = nullptr;
  // Indices count the rows of the context, chunk by chunk in the order of its spec. -1 is skipped;
  // any other index outside the context is InvalidArgument. Lists are per group of the segment's
  // rows. Own rows have their own selection.
  Selection selection = {};
  // Instead of a selection.
  SegmentChoice choice = {};
  // Groups count the segment's rows. Own rows have their own limits (OwnRows::visible).
  RowLimits row_limits = {};
  // Merged after the context's chunks, one after another. At most kOwnRowsCountMax.
  std::span<const OwnRows> own = {};
};

// Attends one layer for one or many contexts of one geometry. The query rows of all contexts that
// one holder attends are sent together. The call borrows everything it points to until it ends.
//
// q, own rows and the answer may be in any memory that the requester's backend reaches, and each
// may name a stream in `after` (attention/partial.h). Selections and limits are host memory. A
// submitted call is ordered after the work that is on q's stream at Submit, or when a failed
// attempt is repeated. It is ordered after the work that is on the other streams at the first Poll
// that finds the queries posted. If a stream belongs to another backend, a blocking call waits for
// it, and a polled call checks Ready.
struct LayerCall {
  uint32_t layer = 0;
  QueryView q;  // bf16 [count, d_qk], count <= kAttendRowCountMax
  // Consecutive segments that together cover the rows of q, over at most 256 corpora in all.
  std::span<const Segment> segments;
  // The type of the partials on the wire. Answers are promised to be exactly equal only with kF32.
  PartialDtype wire = PartialDtype::kBf16;
  // The precision of the partials, here and at holders (attention/precision.h). By default, that of
  // `wire`.
  Precision precision = Precision::kDefault;
  // As in AttendCall.
  bool allow_approximate = false;
  // Identifies the call. Sent with every frame, and included in error texts.
  TraceContext trace = {};
  Instant deadline = kInstantMax;
};

// Attends query rows over chunks of one corpus: a call of one segment with a temporary context. It
// borrows everything it points to until the call returns.
struct AttendCall {
  std::shared_ptr<const Corpus> corpus;
  // The chunks to attend. If empty, the call attends every chunk of the corpus, at canonical
  // positions. A chunk listed twice is InvalidArgument.
  std::span<const ChunkUse> chunks;
  uint32_t layer = 0;
  QueryView q;  // bf16 [count, d_qk], count <= kAttendRowCountMax
  // Indices count the rows of `chunks`, one after another in their order. -1 is skipped; any other
  // index outside the chunks is InvalidArgument, and nothing is sent.
  Selection selection;
  RowLimits row_limits;  // they count the rows of `chunks`, as the selection does
  // The type of the partials on the wire. Answers are promised to be exactly equal only with kF32.
  PartialDtype wire = PartialDtype::kBf16;
  // The precision of the partials, here and at holders (attention/precision.h). By default, that of
  // `wire`.
  Precision precision = Precision::kDefault;
  // Allows a holder whose exact rows are on disk to answer from fp8 copies in memory, if it has
  // them. AttendReport::approximate reports whether one did. If false, an answer is exact or an
  // error.
  bool allow_approximate = false;
  TraceContext trace = {};  // as in LayerCall
  Instant deadline = kInstantMax;
};

// Returns the output buffer for the answer of a call: f32 o [q.count, d_v], m, l. May be called
// more than once and must return the same buffer.
using AttendBuffers = absl::FunctionRef<PartialView()>;

inline constexpr uint32_t kAttendRowCountMax = 1u << 16;

struct AttendReport {
  uint32_t holder_count = 0;
  uint64_t bytes_sent = 0;  // frames on the lanes, headers and rows together
  uint64_t bytes_received = 0;
  uint64_t compute_ns_max = 0;  // kernel time of the slowest holder
  bool approximate = false;     // some rows were fp8 copies; only if the call allowed them
  // The requested precision; never kDefault. Vector targets compute exactly at every precision
  // (attention/precision.h).
  Precision precision = Precision::kExact;
  // Different kernel targets computed the partials, including those of own rows, or a holder did
  // not report its target. A device that merges counts as one of the targets.
  bool targets_differ = false;
  // The kernel target of all partials, if it was the same for all.
  KernelTargetId kernel_target = KernelTargetId::kUnknown;
  // Any other placement, replica or batch of this kernel target gives the same bits. True if the
  // partials were f32, from one target, and none from an fp8 copy.
  bool same_bits_anywhere = false;
  // Pairs of a query row and an attended row: in chunks that holders attended, in locally cached
  // chunks, and in the caller's own rows.
  uint64_t routed_pairs = 0, cached_pairs = 0, own_pairs = 0;
  // Bytes of rows that were prefetched, mapped or recomputed for the call's contexts since their
  // last report.
  uint64_t prefetched_bytes = 0;
  // From the first attempt to the answer. `lost` is the part before the last attempt, spent in
  // failed attempts and in waits for holders.
  Duration elapsed{0};
  Duration lost{0};
  uint32_t failed_attempt_count = 0;
};

// Selects the rows of a context with the best index scores, for models with sparse attention
// (IndexShape in proto/geometry.h). Borrows everything it points to until it returns.
struct SelectRowsCall {
  const Context* context = nullptr;  // its model has an index
  uint32_t layer = 0;
  // One query for each token: vectors [tokens][heads][dim], rotated to the tokens' positions, and
  // weights f32 [tokens][heads]. At most kScoreTokenCountMax tokens.
  IndexQueryView queries;
  uint32_t k = 0;  // rows for each token, 1 to kIndexTopMax
  // The scores of the caller's own rows, [tokens][own rows], or empty. Own rows count as if they
  // came after the context's rows. -inf for rows that a token does not see.
  std::span<const float> own_scores = {};
  TraceContext trace = {};  // as in LayerCall
  Instant deadline = kInstantMax;
};
struct SelectRowsReport {
  uint32_t holder_count = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t compute_ns_max = 0;  // the longest time that a holder scored for one request
  Duration elapsed{0};          // the last attempt alone
};

// A slice of the latent rows: bytes [begin, begin + bytes) of every row, both multiples of 4.
// Holders gather slices before they send them. The number of transfers depends on the bytes alone,
// not on the number of heads or layers.
struct ColumnRange {
  uint32_t begin = 0;
  uint32_t bytes = 0;  // if 0, begin is 0 too and rows are whole
};

// Fetches the rows of a range of chunks and tensors. Ranges are half open, [begin, end), and not
// empty. An end of 0 does not mean "to the end" here, as it does in the gRPC messages. To fetch to
// the end, use corpus->chunks.size(), and corpus->geometry.layers or, with index keys,
// corpus->geometry.tensor_count().
struct FetchCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk_begin = 0;
  uint32_t chunk_end = 0;
  uint32_t tensor_begin = 0;
  uint32_t tensor_end = 0;
  // The new position of the first chunk's first token; RoPE bands are rotated by the difference. If
  // unset, rows stay at their canonical positions. Index keys always do: with them in the range, a
  // position is InvalidArgument.
  std::optional<uint64_t> position;
  // The slice of each row to fetch. With a position, it must contain all of the RoPE band or none
  // of it. Index keys are fetched whole.
  ColumnRange columns;
  TraceContext trace = {};  // as in LayerCall
  Instant deadline = kInstantMax;
};

// Fetches rows chosen by index, for example by a sparse-attention indexer. Rows are at their
// canonical positions and are never rotated, because they have no common offset.
struct SelectionCall {
  std::shared_ptr<const Corpus> corpus;
  // Indices count the rows of these chunks, one after another. The range is not empty.
  uint32_t chunk_begin = 0;
  uint32_t chunk_end = 0;
  // indices[i] selects rows of layer layer_begin + i, in any order. An index may repeat and a list
  // may be empty. All lists together hold at most kSelectionIndexCountMax (2^24) indices.
  uint32_t layer_begin = 0;
  std::span<const std::span<const int32_t>> indices;
  ColumnRange columns;
  TraceContext trace = {};  // as in LayerCall
  Instant deadline = kInstantMax;
};
// Rows of one layer of one chunk: rows[i] is the row for the layer's index number ordinals[i].
struct SelectedRows {
  uint32_t layer = 0;
  uint32_t chunk = 0;
  std::span<const uint32_t> ordinals;  // ascending; borrowed until the sink returns
  std::span<const std::byte> rows;     // [ordinals.size()][row_bytes or columns.bytes]; borrowed
};

// Consecutive rows of one tensor of one chunk, in token order.
struct RowRun {
  uint32_t chunk = 0;   // ordinal in the corpus
  uint32_t tensor = 0;  // as the geometry counts them: below `layers` it is the layer
  uint32_t token_begin = 0;
  uint32_t token_count = 0;
};
struct FetchedRows : RowRun {
  // [token_count][tensor_row_bytes(tensor), or columns.bytes]; borrowed until the sink returns
  std::span<const std::byte> rows;
  // kPinned if a device can read them in place. A processor can read them in either case.
  MemoryKind memory = MemoryKind::kHost;
};

struct FetchIntoReport {
  uint64_t rows_spliced = 0;  // rows of all layers; a row received twice counts twice
  uint32_t reopen_count = 0;  // attempts after the first, over a new lane or at a replica
  Duration elapsed{0};
};

struct ExplainCall {
  std::shared_ptr<const Corpus> corpus;
  // Ordinals in the corpus, each at most once. If empty, all chunks of the corpus.
  std::vector<uint32_t> chunks;
  uint32_t query_rows = 0;  // M_q of one request: tokens x heads
  uint32_t steps = 1;       // decode steps; 0 counts as 1
  uint32_t agents = 1;      // agents of this requester that share the chunks; 0 counts as 1
  uint32_t select = 0;      // rows a query attends; 0 means all
  PartialDtype wire = PartialDtype::kBf16;
  // Tokens that still fit the engine's cache. If unset, the chunks are assumed to fit.
  std::optional<uint64_t> cache_room_tokens;
  bool spliced = false;  // as in EstimateCall
  Instant deadline = kInstantMax;
};

struct MapCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk = 0;  // ordinal in the corpus
  Instant deadline = kInstantMax;
  // The caller can do without the mapping. The call makes one attempt, and a slow or refusing
  // holder is not avoided afterwards.
  bool may_be_refused = false;
};

// A chunk's rows in its holder's memory, mapped read-only without a copy. No process writes or
// frees the rows any more, even if the holder or the requester ends. The memory stays in use until
// this object is destroyed. Rows are at their canonical positions.
class MappedChunk {
 public:
  MappedChunk() = default;  // has no tensors
  MappedChunk(MappedChunk&& other) noexcept;
  MappedChunk& operator=(MappedChunk&& other) noexcept;
  ~MappedChunk();

  // Returns tensor t < geometry.tensor_count(): [token_count][tensor_row_bytes(t)], 64-byte
  // aligned. It stays valid as long as this object lives.
  std::span<const std::byte> tensor(uint32_t t) const;
  // Returns the rows of layer l < geometry.layers.
  std::span<const std::byte> layer(uint32_t l) const { return tensor(l); }
  uint32_t token_count() const { return token_count_; }

 private:
  friend absl::StatusOr<MappedChunk> MapDescriptor(int fd, uint64_t bytes, const Geometry& geometry,
                                                   uint32_t chunk_tokens);
  std::span<const std::byte> memory_;  // unmapped by the destructor
  ChunkLayout layout_;
  uint32_t token_count_ = 0;
};

}  // namespace ckv
