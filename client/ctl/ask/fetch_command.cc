// ckvctl fetch: pulls the rows of chunks into a safetensors file.

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/checks.h"
#include "client/ctl/chunk_range.h"
#include "client/ctl/commands.h"
#include "client/ctl/corpus/tensor_files.h"
#include "client/ctl/time_span.h"
#include "proto/base/status.h"
#include "store/formats/safetensors.h"

namespace ckv::ctl {
namespace {

// The rows are gathered in memory before they are written.
constexpr uint64_t kFetchBytesMax = uint64_t{4} << 30;

struct FetchOptions {
  std::string corpus;
  std::string chunks;
  std::string out;
  std::optional<uint64_t> position;
  uint32_t timeout_ms = 60'000;
};

// The rows of the chosen chunks, [layer][token][row], and how many have come.
struct Gathered {
  uint64_t token_count = 0;
  std::map<uint32_t, uint64_t> first_token;  // by ordinal
  std::vector<std::vector<std::byte>> layers;
  uint64_t bytes = 0;
};

absl::Status Take(const v1::FetchReply& reply, const Corpus& corpus, ChunkRun run,
                  Gathered& gathered) {
  const uint32_t row_bytes = corpus.geometry.row_bytes();
  const bool inside = reply.chunk() >= run.begin && reply.chunk() < run.end &&
                      reply.layer() < corpus.geometry.layers &&
                      uint64_t{reply.token_begin()} + reply.token_count() <=
                          corpus.chunks[reply.chunk()].token_count &&
                      reply.rows().size() == uint64_t{reply.token_count()} * row_bytes;
  if (!inside) {
    return absl::InternalError(absl::StrFormat(
        "the requester sent rows that were not asked for: chunk %d, layer %d, %d tokens",
        reply.chunk(), reply.layer(), reply.token_count()));
  }
  const uint64_t token = gathered.first_token.at(reply.chunk()) + reply.token_begin();
  std::memcpy(gathered.layers[reply.layer()].data() + token * row_bytes, reply.rows().data(),
              reply.rows().size());
  gathered.bytes += reply.rows().size();
  return absl::OkStatus();
}

// One call: the requester fetches chunks that follow each other.
absl::Status FetchRun(Fleet& fleet, const FetchOptions& options, const Corpus& corpus, ChunkRun run,
                      Instant deadline, Progress& progress, Gathered& gathered) {
  const uint32_t left_ms = fleet.RemainingMs(deadline);
  v1::FetchRequest request;
  request.set_corpus(options.corpus);
  request.set_tenant(fleet.options().tenant);
  request.set_corpus_version(corpus.version);
  request.set_chunk_begin(run.begin);
  request.set_chunk_end(run.end);
  request.set_timeout_ms(left_ms);
  if (options.position) {
    request.set_position(*options.position + gathered.first_token.at(run.begin));
  }
  grpc::ClientContext context;
  fleet.PrepareBeyond(context, left_ms);
  const auto reader = fleet.requester().Fetch(&context, request);
  v1::FetchReply reply;
  absl::Status taken;
  while (reader->Read(&reply)) {
    taken = Take(reply, corpus, run, gathered);
    if (!taken.ok()) {
      context.TryCancel();
      break;
    }
    progress.Advance(reply.rows().size());
  }
  const absl::Status status = fleet.RequesterError(reader->Finish(), "Fetch");
  return taken.ok() ? status : taken;
}

absl::StatusOr<Gathered> Gather(const Ctl& ctl, Fleet& fleet, const FetchOptions& options,
                                const Corpus& corpus, const std::vector<uint32_t>& ordinals) {
  Gathered gathered;
  for (const uint32_t ordinal : ordinals) {
    gathered.first_token[ordinal] = gathered.token_count;
    gathered.token_count += corpus.chunks[ordinal].token_count;
  }
  const uint64_t total = gathered.token_count * corpus.geometry.token_bytes();
  if (total > kFetchBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the rows take %s, limit %s\n  fetch fewer chunks at once with --chunks",
                        FormatBytes(total), FormatBytes(kFetchBytesMax)));
  }
  gathered.layers.assign(
      corpus.geometry.layers,
      std::vector<std::byte>(gathered.token_count * corpus.geometry.row_bytes()));
  const auto progress = ctl.StartProgress("fetch", "B", total);
  const Instant deadline = ctl.clock->Now() + std::chrono::milliseconds(options.timeout_ms);
  for (const ChunkRun run : AsRuns(ordinals)) {
    CKV_RETURN_IF_ERROR(FetchRun(fleet, options, corpus, run, deadline, *progress, gathered));
  }
  if (gathered.bytes != total) {
    return absl::InternalError(
        absl::StrFormat("the requester sent %d bytes of %d", gathered.bytes, total));
  }
  return gathered;
}

absl::Status Write(const FetchOptions& options, const Corpus& corpus,
                   const std::vector<uint32_t>& ordinals, const Gathered& gathered) {
  const Geometry& geometry = corpus.geometry;
  const bool bf16 = geometry.dtype == RowDtype::kBf16;
  const uint64_t width = bf16 ? geometry.d_qk : geometry.row_bytes();
  std::vector<TensorToWrite> tensors;
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    tensors.push_back({absl::StrFormat("layers.%d.ckv", layer),
                       bf16 ? TensorDtype::kBf16 : TensorDtype::kU8,
                       {gathered.token_count, width},
                       gathered.layers[layer]});
  }
  const uint64_t canonical = ordinals.empty() ? 0 : corpus.chunks[ordinals.front()].position;
  return WriteSafetensors(options.out,
                          RowFileMetadata(geometry, options.position.value_or(canonical)), tensors);
}

// A row file has one base_position, so rows that do not follow each other would lie about theirs.
absl::Status CheckPositions(const FetchOptions& options, const Corpus& corpus,
                            const std::vector<uint32_t>& ordinals) {
  if (options.position) return absl::OkStatus();  // moves the chunks behind each other
  for (size_t i = 0; i + 1 < ordinals.size(); ++i) {
    const ChunkPlacement& here = corpus.chunks[ordinals[i]];
    const ChunkPlacement& next = corpus.chunks[ordinals[i + 1]];
    if (here.position + here.token_count == next.position) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "chunk %d of corpus %s does not stand right behind chunk %d, and a file has one "
        "base_position\n  fetch up to chunk %d with --chunks, or rotate the rows behind each other "
        "with --position",
        ordinals[i + 1], corpus.name, ordinals[i], ordinals[i]));
  }
  return absl::OkStatus();
}

absl::Status RunFetch(const Ctl& ctl, const FetchOptions& options) {
  CKV_RETURN_IF_ERROR(CheckOutput(options.out));
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  CKV_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> ordinals,
      ParseChunkRanges(options.chunks, static_cast<uint32_t>(corpus.chunks.size())));
  CKV_RETURN_IF_ERROR(CheckPositions(options, corpus, ordinals));
  const Instant start = ctl.clock->Now();
  CKV_ASSIGN_OR_RETURN(const Gathered gathered, Gather(ctl, fleet, options, corpus, ordinals));
  const Duration elapsed = ctl.clock->Now() - start;
  CKV_RETURN_IF_ERROR(Write(options, corpus, ordinals, gathered));
  const double seconds = static_cast<double>(elapsed.count()) / 1e9;
  ctl.Print(RenderFields({{"wrote", options.out},
                          {"tokens", std::to_string(gathered.token_count)},
                          {"rows", FormatBytes(gathered.bytes)},
                          {"took", FormatDuration(elapsed)},
                          {"rate", FormatRate(static_cast<double>(gathered.bytes) / seconds)}}),
            {{"out", options.out},
             {"chunk_count", ordinals.size()},
             {"token_count", gathered.token_count},
             {"bytes", gathered.bytes},
             {"seconds", seconds}});
  return absl::OkStatus();
}

}  // namespace

void AddFetchCommand(CLI::App& app, Ctl& ctl) {
  const auto options = std::make_shared<FetchOptions>();
  CLI::App* verb = AddVerb(
      app, "fetch", "Pull the rows of chunks into a safetensors file",
      "  ckvctl fetch --corpus docs --chunks 0-1 --out rows.safetensors\n"
      "  ckvctl fetch --corpus docs --chunks 0-2,5 --position 4096 --out moved.safetensors\n\n"
      "A file has one base_position, so a list with gaps needs --position.\n"
      "File: layers.{i}.ckv [T, row] and the metadata of a row file (ckvctl corpus load --help).\n"
      "token_ids [T] I32 is not among them, since holders do not give token ids back: add it\n"
      "before corpus load takes the file.");
  verb->add_option("--corpus", options->corpus, "The corpus")->required()->type_name("NAME");
  verb->add_option("--chunks", options->chunks, kChunksHelp)->check(NotEmpty())->type_name("LIST");
  verb->add_option("--out", options->out, "safetensors file to write")
      ->required()
      ->type_name("FILE");
  verb->add_option("--position", options->position,
                   "Rotate the rows to stand from this position on (default: canonical)")
      ->check(WholeNumber());
  AddTimeout(*verb, "--timeout", options->timeout_ms, "Limit of the whole fetch");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunFetch(ctl, *options); }; });
}

}  // namespace ckv::ctl
