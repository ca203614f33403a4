// ckvctl attend: routes the queries of a file and writes their merged partial to another.
// RunAttend, in order: checks that the output can be written; AttendCurrent reads the corpus, and
// begins again if another version replaces it meanwhile; AttendOnce reads the queries and the
// selection; SendAll sends them in messages of at most 2 MiB; then the partial is written.

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/precision.h"
#include "client/calls.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/chunk_range.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/tensor_files.h"
#include "client/tools/ctl/time_span.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

// The most bytes of queries, indices or partials in one message: big enough to fill a lane many
// times over (a slot has 256 rows), small enough that progress is seen.
constexpr uint64_t kBatchBytesMax = uint64_t{2} << 20;

struct AttendOptions {
  std::string corpus;
  std::string chunks;
  uint32_t layer = 0;
  std::string queries;
  std::string select;
  std::string out;
  int64_t offset = 0;
  std::string wire = "bf16";
  std::string precision;
  bool approximate = false;
  uint32_t timeout_ms = 10'000;
};

struct Totals {
  uint32_t messages = 0;
  uint32_t holder_count = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t elapsed_ns = 0;
  uint64_t lost_ns = 0;
  uint64_t failed_attempts = 0;
  bool approximate = false;
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;
};

// Returns ", 3.02 s of it in 1 failed attempt", or nothing if none failed.
std::string LostNote(const Totals& totals) {
  if (totals.failed_attempts == 0) return "";
  return absl::StrFormat(", %s of it in %s",
                         FormatDuration(Duration(static_cast<int64_t>(totals.lost_ns))),
                         FormatCount(totals.failed_attempts, "failed attempt"));
}

v1::Precision PrecisionOf(std::string_view name) {
  if (name == "exact") return v1::PRECISION_EXACT;
  if (name == "wire") return v1::PRECISION_WIRE;
  return name == "fast" ? v1::PRECISION_FAST : v1::PRECISION_UNSPECIFIED;
}

// Everything of the request but its rows.
v1::AttendRequest Template(const Ctl& ctl, const AttendOptions& options, const Corpus& corpus,
                           const std::vector<uint32_t>& ordinals) {
  v1::AttendRequest request;
  request.set_corpus(options.corpus);
  request.set_tenant(ctl.fleet.tenant);
  request.set_corpus_version(corpus.version);
  request.set_layer(options.layer);
  request.set_wire(options.wire == "f32" ? v1::PARTIAL_DTYPE_F32 : v1::PARTIAL_DTYPE_BF16);
  request.set_precision(PrecisionOf(options.precision));
  request.set_allow_approximate(options.approximate);
  request.set_timeout_ms(options.timeout_ms);
  if (const auto run = AsRun(ordinals); run && options.offset == 0) {
    request.set_chunk_begin(run->begin);
    request.set_chunk_end(run->end);
    return request;
  }
  for (const uint32_t ordinal : ordinals) {
    v1::ChunkRef* chunk = request.add_chunks();
    chunk->set_id(std::string(corpus.chunks[ordinal].id.AsBytes()));
    chunk->set_offset(options.offset);
  }
  return request;
}

// Returns the rows per message, by the largest of a row's query, indices and partial.
uint32_t RowsPerMessage(const Geometry& geometry, uint32_t k) {
  const uint64_t widest = std::max<uint64_t>(
      {geometry.query_row_bytes(), geometry.partial_row_bytes(true), uint64_t{k} * 4});
  return static_cast<uint32_t>(std::max<uint64_t>(1, kBatchBytesMax / widest));
}

absl::Status TakeReply(const v1::AttendReply& reply, uint32_t begin, uint32_t rows,
                       PartialArrays& partial) {
  const size_t o_bytes = size_t{rows} * partial.d_v * sizeof(float);
  const size_t row_bytes = size_t{rows} * sizeof(float);
  if (reply.row_count() != rows || reply.o().size() != o_bytes || reply.m().size() != row_bytes ||
      reply.l().size() != row_bytes) {
    return absl::InternalError(
        absl::StrFormat("the requester answered %d rows of %d asked", reply.row_count(), rows));
  }
  std::memcpy(partial.o.data() + size_t{begin} * partial.d_v, reply.o().data(), o_bytes);
  std::memcpy(partial.m.data() + begin, reply.m().data(), row_bytes);
  std::memcpy(partial.l.data() + begin, reply.l().data(), row_bytes);
  return absl::OkStatus();
}

absl::StatusOr<Totals> SendAll(const Ctl& ctl, Fleet& fleet, v1::AttendRequest request,
                               const Geometry& geometry, const Queries& queries,
                               const SelectedRows& selection, bool selected,
                               PartialArrays& partial) {
  const auto progress = ctl.StartProgress("attend", "rows", queries.rows);
  const uint32_t step = RowsPerMessage(geometry, selection.k);
  Totals totals;
  for (uint32_t begin = 0; begin < queries.rows; begin += step) {
    const uint32_t rows = std::min(step, queries.rows - begin);
    request.set_row_count(rows);
    request.set_q(queries.values.data() + size_t{begin} * geometry.d_qk,
                  size_t{rows} * geometry.query_row_bytes());
    if (selected) {
      request.mutable_selection()->set_k(selection.k);
      request.mutable_selection()->set_group_rows(1);
      request.mutable_selection()->set_indices(
          Int32sToBytes(std::span(selection.indices)
                            .subspan(size_t{begin} * selection.k, size_t{rows} * selection.k)));
    }
    grpc::ClientContext context;
    fleet.PrepareBeyond(context, request.timeout_ms());
    v1::AttendReply reply;
    CKV_RETURN_IF_ERROR(
        fleet.RequesterError(fleet.requester().Attend(&context, request, &reply), "Attend"));
    CKV_RETURN_IF_ERROR(TakeReply(reply, begin, rows, partial));
    ++totals.messages;
    totals.holder_count = std::max(totals.holder_count, reply.holder_count());
    totals.bytes_sent += reply.bytes_sent();
    totals.bytes_received += reply.bytes_received();
    totals.elapsed_ns += reply.elapsed_ns();
    totals.lost_ns += reply.lost_ns();
    totals.failed_attempts += reply.failed_attempt_count();
    totals.approximate = totals.approximate || reply.approximate();
    totals.precision = reply.precision();
    progress->Advance(rows);
  }
  return totals;
}

absl::Status Validate(const AttendOptions& options, const Corpus& corpus) {
  if (options.layer < corpus.geometry.layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("--layer %d: corpus %s has %d layers, 0 to %d", options.layer, corpus.name,
                      corpus.geometry.layers, corpus.geometry.layers - 1));
}

// An answer, and the one version of the corpus that all its chunks are from.
struct Answered {
  Corpus corpus;
  uint32_t query_count = 0;
  size_t chunk_count = 0;
  uint64_t row_count = 0;
  Totals totals;
  PartialArrays partial;
};

absl::StatusOr<Answered> AttendOnce(const Ctl& ctl, Fleet& fleet, const AttendOptions& options,
                                    Corpus corpus) {
  CKV_RETURN_IF_ERROR(Validate(options, corpus));
  CKV_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> ordinals,
      ParseChunkRanges(options.chunks, static_cast<uint32_t>(corpus.chunks.size())));
  Answered answered;
  answered.chunk_count = ordinals.size();
  for (const uint32_t ordinal : ordinals) answered.row_count += corpus.chunks[ordinal].token_count;
  CKV_ASSIGN_OR_RETURN(const Queries queries, ReadQueries(options.queries, corpus.geometry.d_qk));
  answered.query_count = queries.rows;
  SelectedRows selection;
  const bool selected = !options.select.empty();
  if (selected) {
    CKV_ASSIGN_OR_RETURN(selection,
                         ReadSelection(options.select, queries.rows, answered.row_count));
  }
  PartialArrays& partial = answered.partial;
  partial.rows = queries.rows;
  partial.d_v = corpus.geometry.d_v;
  partial.o.resize(size_t{queries.rows} * corpus.geometry.d_v);
  partial.m.resize(queries.rows);
  partial.l.resize(queries.rows);
  CKV_ASSIGN_OR_RETURN(answered.totals,
                       SendAll(ctl, fleet, Template(ctl, options, corpus, ordinals),
                               corpus.geometry, queries, selection, selected, partial));
  answered.corpus = std::move(corpus);
  return answered;
}

// If the corpus is replaced or moved meanwhile, attends it again from the first row: an answer is
// of one version.
absl::StatusOr<Answered> AttendCurrent(const Ctl& ctl, Fleet& fleet, const AttendOptions& options) {
  constexpr int kVersionCountMax = 3;
  CKV_ASSIGN_OR_RETURN(Corpus corpus, fleet.GetCorpus(options.corpus));
  for (int i = 1;; ++i) {
    const uint64_t version = corpus.version;
    absl::StatusOr<Answered> answered = AttendOnce(ctl, fleet, options, std::move(corpus));
    if (!absl::IsFailedPrecondition(answered.status()) || i == kVersionCountMax) return answered;
    CKV_ASSIGN_OR_RETURN(corpus, fleet.GetCorpus(options.corpus));
    if (corpus.version == version) return answered;
  }
}

absl::Status RunAttend(const Ctl& ctl, const AttendOptions& options) {
  CKV_RETURN_IF_ERROR(CheckOutput(options.out));
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Answered answered, AttendCurrent(ctl, fleet, options));
  const Totals& totals = answered.totals;
  const Geometry& geometry = answered.corpus.geometry;
  CKV_RETURN_IF_ERROR(WritePartial(
      options.out, answered.partial,
      {{"corpus", answered.corpus.name},
       {"layer", std::to_string(options.layer)},
       {"rows", totals.approximate ? "approximate" : "exact"},
       {"precision", std::string(PrecisionName(static_cast<Precision>(totals.precision)))},
       {"model", geometry.model},
       {"revision", geometry.revision}}));
  const Duration elapsed(static_cast<int64_t>(totals.elapsed_ns));
  PrintBeside(
      ctl, options.out,
      RenderFields(
          {{"wrote", options.out},
           {"rows", absl::StrFormat("%d over %s of %s", answered.query_count,
                                    FormatCount(answered.chunk_count, "chunk"),
                                    FormatCount(answered.row_count, "token"))},
           {"holders", std::to_string(totals.holder_count)},
           {"sent", FormatBytes(totals.bytes_sent)},
           {"received", FormatBytes(totals.bytes_received)},
           {"answer", totals.approximate ? "approximate: some rows were fp8 copies" : "exact rows"},
           {"precision", std::string(PrecisionName(static_cast<Precision>(totals.precision)))},
           {"took", FormatDuration(elapsed) + LostNote(totals)}}),
      {{"out", options.out},
       {"row_count", answered.query_count},
       {"chunk_count", answered.chunk_count},
       {"token_count", answered.row_count},
       {"message_count", totals.messages},
       {"holder_count", totals.holder_count},
       {"bytes_sent", totals.bytes_sent},
       {"bytes_received", totals.bytes_received},
       {"approximate", totals.approximate},
       {"precision", std::string(PrecisionName(static_cast<Precision>(totals.precision)))},
       {"seconds", static_cast<double>(totals.elapsed_ns) / 1e9},
       {"failed_attempt_count", totals.failed_attempts},
       {"lost_seconds", static_cast<double>(totals.lost_ns) / 1e9}});
  return absl::OkStatus();
}

}  // namespace

void AddAttendCommand(CLI::App& app, Ctl& ctl) {
  const auto options = std::make_shared<AttendOptions>();
  CLI::App* verb = AddVerb(
      app, "attend", "Route queries to the chunks of a corpus and merge their partials",
      "  ckvctl attend --corpus docs --layer 3 --queries q.safetensors --out partial.safetensors\n"
      "  ckvctl attend --corpus docs --chunks 0-2,5 --layer 0 --queries q.safetensors \\\n"
      "      --select idx.safetensors --wire f32 --out partial.safetensors\n\n"
      "Files: queries have tensor q [M, d_qk] BF16 or F32; a selection has indices [M, k] I32, -1\n"
      "skipped, counting rows over the chosen chunks in order; the result has o [M, d_v], m [M]\n"
      "and l [M], F32 (natural log, the softmax scale in m).");
  verb->add_option("--corpus", options->corpus, "The corpus")->required()->type_name("NAME");
  verb->add_option("--chunks", options->chunks, kChunksHelp)->check(NotEmpty())->type_name("LIST");
  verb->add_option("--layer", options->layer, "The layer, counted from 0")
      ->required()
      ->check(WholeNumber());
  verb->add_option("--queries", options->queries, "safetensors file with q")
      ->required()
      ->type_name("FILE");
  verb->add_option("--select", options->select, "safetensors file with indices")->type_name("FILE");
  verb->add_option("--out", options->out, "safetensors file to write")
      ->required()
      ->type_name("FILE");
  verb->add_option("--offset", options->offset,
                   "Positions by which the chunks are moved behind their canonical place")
      ->check(CLI::Range(-kOffsetMax, kOffsetMax).description(""));
  const std::vector<std::string> dtypes = {"bf16", "f32"};
  verb->add_option("--wire", options->wire,
                   "Partials between holder and requester (default: bf16); f32 has the same bits "
                   "for any placement")
      ->check(OneOf(dtypes))
      ->type_name(JoinNames(dtypes));
  const std::vector<std::string> precisions = {"exact", "wire", "fast"};
  verb->add_option("--precision", options->precision,
                   "How exactly to compute: exact (default for f32), wire (default for bf16) or "
                   "fast, on processors that multiply bf16; others always compute exactly")
      ->check(OneOf(precisions))
      ->type_name(JoinNames(precisions));
  verb->add_flag("--approximate", options->approximate,
                 "Holders may answer from fp8 copies in memory of chunks that are on disk");
  AddTimeout(*verb, "--timeout", options->timeout_ms, "Limit of each message");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunAttend(ctl, *options); }; });
}

}  // namespace ckv::ctl
