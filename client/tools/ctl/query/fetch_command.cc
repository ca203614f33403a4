// ckvctl fetch: writes the rows of chunks into a file. RunFetch, in order: checks the output and
// the positions of the chunks; OpenSink creates the file and its header; Gather fetches one range
// of chunks after another and writes each reply at its place; the file gets its name when it is
// whole.

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/chunk_range.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/tensor_files.h"
#include "client/tools/ctl/query/fetch_sink.h"
#include "client/tools/ctl/time_span.h"
#include "proto/base/status.h"
#include "store/formats/llama_state.h"

namespace ckv::ctl {
namespace {

struct FetchOptions {
  std::string corpus;
  std::string chunks;
  std::string out;
  std::optional<uint64_t> position;
  uint32_t streams = 0;  // 0 if not given
  uint32_t timeout_ms = 60'000;

  bool is_llama() const { return std::string_view(out).ends_with(".ggsq"); }
};

// The chosen chunks, and how many bytes of their rows have arrived.
struct Gathered {
  FetchFile file;
  Geometry geometry;  // the corpus's, without an index if its keys are left out
  std::map<uint32_t, uint64_t> first_token;  // by ordinal
  std::unique_ptr<FetchSink> sink;
  uint64_t bytes = 0;
};

absl::Status Take(const v1::FetchReply& reply, const Corpus& corpus, ChunkRun run, bool index_keys,
                  Gathered& gathered) {
  const auto tensor = TensorOf(corpus.geometry, reply.layer(), index_keys);
  const uint32_t row_bytes = tensor.ok() ? corpus.geometry.tensor_row_bytes(*tensor) : 0;
  const bool inside = reply.chunk() >= run.begin && reply.chunk() < run.end && tensor.ok() &&
                      uint64_t{reply.token_begin()} + reply.token_count() <=
                          corpus.chunks[reply.chunk()].token_count &&
                      reply.rows().size() == uint64_t{reply.token_count()} * row_bytes;
  if (!inside) {
    return absl::InternalError(absl::StrFormat(
        "the requester sent rows that were not requested: chunk %d, layer %d, %d tokens",
        reply.chunk(), reply.layer(), reply.token_count()));
  }
  const uint64_t token = gathered.first_token.at(reply.chunk()) + reply.token_begin();
  gathered.bytes += reply.rows().size();
  return gathered.sink->Take(*tensor, token, std::as_bytes(std::span(reply.rows())));
}

// One call: the requester fetches chunks that follow each other.
absl::Status FetchRun(Fleet& fleet, const FetchOptions& options, const Corpus& corpus, ChunkRun run,
                      bool index_keys, Instant deadline, Progress& progress, Gathered& gathered) {
  const uint32_t left_ms = fleet.RemainingMs(deadline);
  v1::FetchRequest request;
  request.set_corpus(options.corpus);
  request.set_tenant(fleet.options().tenant);
  request.set_corpus_version(corpus.version);
  request.set_chunk_begin(run.begin);
  request.set_chunk_end(run.end);
  request.set_timeout_ms(left_ms);
  request.set_index_keys(index_keys);
  if (options.position) {
    request.set_position(*options.position + gathered.first_token.at(run.begin));
  }
  grpc::ClientContext context;
  fleet.PrepareBeyond(context, left_ms);
  const auto reader = fleet.requester().Fetch(&context, request);
  v1::FetchReply reply;
  absl::Status taken;
  while (reader->Read(&reply)) {
    taken = Take(reply, corpus, run, index_keys, gathered);
    if (!taken.ok()) {
      context.TryCancel();
      break;
    }
    progress.Advance(reply.rows().size());
  }
  const absl::Status status = fleet.RequesterError(reader->Finish(), "Fetch");
  return taken.ok() ? status : taken;
}

absl::StatusOr<Gathered> OpenSink(Fleet& fleet, const FetchOptions& options, const Corpus& corpus,
                                  const std::vector<uint32_t>& ordinals, Instant deadline) {
  Gathered gathered;
  const uint64_t canonical = ordinals.empty() ? 0 : corpus.chunks[ordinals.front()].position;
  gathered.file = {options.out, 0, options.position.value_or(canonical)};
  for (const uint32_t ordinal : ordinals) {
    gathered.first_token[ordinal] = gathered.file.token_count;
    gathered.file.token_count += corpus.chunks[ordinal].token_count;
  }
  gathered.geometry = corpus.geometry;
  if (options.position || options.is_llama()) gathered.geometry.index.reset();
  if (!options.is_llama()) {
    CKV_ASSIGN_OR_RETURN(gathered.sink, OpenTensorSink(gathered.file, gathered.geometry));
    return gathered;
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<int32_t> token_ids,
                       FetchTokenIds(fleet, corpus, ordinals, deadline));
  CKV_ASSIGN_OR_RETURN(gathered.sink, OpenLlamaSink(gathered.file, gathered.geometry, token_ids,
                                                    options.streams == 0 ? 1 : options.streams));
  return gathered;
}

absl::Status Gather(const Ctl& ctl, Fleet& fleet, const FetchOptions& options, const Corpus& corpus,
                    const std::vector<uint32_t>& ordinals, Instant deadline, Gathered& gathered) {
  if (gathered.geometry != corpus.geometry) {
    ctl.Note("ckvctl: the file has no index keys: " +
             std::string(options.is_llama() ? "a sequence state cannot have them"
                                            : "they cannot be rotated"));
  }
  const uint64_t total = gathered.file.token_count * gathered.geometry.token_bytes();
  const auto progress = ctl.StartProgress("fetch", "B", total);
  for (const ChunkRun run : AsRuns(ordinals)) {
    for (const bool index_keys : {false, true}) {
      if (index_keys && !gathered.geometry.index) continue;
      CKV_RETURN_IF_ERROR(
          FetchRun(fleet, options, corpus, run, index_keys, deadline, *progress, gathered));
    }
  }
  if (gathered.bytes == total) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("the requester sent %d bytes of %d", gathered.bytes, total));
}

// A row file has one base_position, which would be wrong for rows that do not follow each other.
absl::Status CheckPositions(const FetchOptions& options, const Corpus& corpus,
                            const std::vector<uint32_t>& ordinals) {
  if (options.position) return absl::OkStatus();  // moves the chunks behind each other
  for (size_t i = 0; i + 1 < ordinals.size(); ++i) {
    const ChunkPlacement& here = corpus.chunks[ordinals[i]];
    const ChunkPlacement& next = corpus.chunks[ordinals[i + 1]];
    if (here.position + here.token_count == next.position) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "chunk %d of corpus %s does not follow chunk %d directly, and a file has one "
        "base_position\n  fetch up to chunk %d with --chunks, or rotate the rows behind each other "
        "with --position",
        ordinals[i + 1], corpus.name, ordinals[i], ordinals[i]));
  }
  return absl::OkStatus();
}

absl::Status RunFetch(const Ctl& ctl, const FetchOptions& options) {
  if (options.streams != 0 && !options.is_llama()) {
    return absl::InvalidArgumentError("--streams is for a sequence state: --out FILE.ggsq");
  }
  CKV_RETURN_IF_ERROR(CheckOutput(options.out));
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  CKV_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> ordinals,
      ParseChunkRanges(options.chunks, static_cast<uint32_t>(corpus.chunks.size())));
  CKV_RETURN_IF_ERROR(CheckPositions(options, corpus, ordinals));
  const Instant start = ctl.clock->Now();
  const Instant deadline = start + std::chrono::milliseconds(options.timeout_ms);
  CKV_ASSIGN_OR_RETURN(Gathered gathered, OpenSink(fleet, options, corpus, ordinals, deadline));
  CKV_RETURN_IF_ERROR(Gather(ctl, fleet, options, corpus, ordinals, deadline, gathered));
  const Duration elapsed = ctl.clock->Now() - start;
  CKV_RETURN_IF_ERROR(gathered.sink->Finish());
  const double seconds = static_cast<double>(elapsed.count()) / 1e9;
  PrintBeside(ctl, options.out,
              RenderFields({{"wrote", options.out},
                            {"tokens", std::to_string(gathered.file.token_count)},
                            {"rows", FormatBytes(gathered.bytes)},
                            {"took", FormatDuration(elapsed)},
                            {"rate", FormatRate(static_cast<double>(gathered.bytes) / seconds)}}),
              {{"out", options.out},
               {"chunk_count", ordinals.size()},
               {"token_count", gathered.file.token_count},
               {"bytes", gathered.bytes},
               {"seconds", seconds}});
  return absl::OkStatus();
}

}  // namespace

void AddFetchCommand(CLI::App& app, Ctl& ctl) {
  const auto options = std::make_shared<FetchOptions>();
  CLI::App* verb = AddVerb(
      app, "fetch", "Fetch the rows of chunks into a file",
      "  ckvctl fetch --corpus docs --chunks 0-1 --out rows.safetensors\n"
      "  ckvctl fetch --corpus docs --chunks 0-2,5 --position 4096 --out moved.safetensors\n"
      "  ckvctl fetch --corpus docs --position 0 --out docs.ggsq --streams 4\n\n"
      "A file has one base_position, so a list with gaps needs --position.\n"
      "File: layers.{i}.ckv [T, row], layers.{i}.index_k of a model with index keys, and the\n"
      "metadata of a row file (ckvctl corpus load --help). At another position, there are no "
      "index\n"
      "keys.\n"
      "token_ids [T] I32 is not among them. Add it before corpus load takes the file, or write a\n"
      "FILE.ggsq, which has them.\n\n"
      "FILE.ggsq is a sequence state that llama.cpp restores, token ids and all. Its cache has\n"
      "keys of bf16, flash attention, and --streams: as many as it has sequences, or 1 if it is\n"
      "unified.");
  verb->add_option("--corpus", options->corpus, "The corpus")->required()->type_name("NAME");
  verb->add_option("--chunks", options->chunks, kChunksHelp)->check(NotEmpty())->type_name("LIST");
  verb->add_option(
          "--out", options->out,
          "File to write: FILE.ggsq is a sequence state of llama.cpp, any other is safetensors")
      ->required()
      ->type_name("FILE");
  verb->add_option("--position", options->position,
                   "Rotate the rows so that they begin at this position (default: canonical)")
      ->check(WholeNumber());
  verb->add_option("--streams", options->streams,
                   "Streams of the cache that loads a sequence state (default: 1)")
      ->check(InRange(1u, kLlamaStreamCountMax));
  AddTimeout(*verb, "--timeout", options->timeout_ms, "Limit of the whole fetch");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunFetch(ctl, *options); }; });
}

}  // namespace ckv::ctl
