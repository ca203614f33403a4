// ckvctl attach: writes a sequence state of llama.cpp that refers to chunks of a corpus.

#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/chunk_range.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/tensor_files.h"
#include "client/tools/ctl/query/fetch_sink.h"
#include "client/tools/ctl/time_span.h"
#include "proto/base/status.h"
#include "store/formats/llama_state.h"
#include "store/formats/reference_cell.h"

namespace ckv::ctl {
namespace {

struct AttachOptions {
  std::string corpus;
  std::string chunks;
  std::string out;
  std::optional<uint64_t> position;
  uint32_t streams = 1;
  uint32_t timeout_ms = 60'000;
};

absl::Status WriteReference(const AttachOptions& options, const Geometry& geometry,
                            std::span<const int32_t> token_ids, CellReference reference) {
  CKV_ASSIGN_OR_RETURN(LlamaStateWriter writer,
                       LlamaStateWriter::Create(options.out, {.token_ids = token_ids,
                                                              .base_position = reference.position,
                                                              .cell_count = 1,
                                                              .layer_count = geometry.layers,
                                                              .row_bytes = geometry.row_bytes(),
                                                              .stream_count = options.streams}));
  std::vector<std::byte> row(geometry.row_bytes());
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    reference.layer = layer;
    CKV_RETURN_IF_ERROR(EncodeReference(reference, row));
    CKV_RETURN_IF_ERROR(writer.Write(layer, 0, row));
  }
  return std::move(writer).Finish();
}

absl::Status RunAttach(const Ctl& ctl, const AttachOptions& options) {
  CKV_RETURN_IF_ERROR(CheckOutput(options.out));
  Fleet fleet(ctl.fleet, ctl.clock);
  const Instant deadline = ctl.clock->Now() + std::chrono::milliseconds(options.timeout_ms);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
  const Geometry& geometry = corpus.geometry;
  if (geometry.dtype != RowDtype::kBf16) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a sequence state of llama.cpp has keys of bf16, and these rows are others: %s",
        geometry.ToString()));
  }
  CKV_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> ordinals,
      ParseChunkRanges(options.chunks, static_cast<uint32_t>(corpus.chunks.size())));
  const std::optional<ChunkRun> run = AsRun(ordinals);
  if (!run) {
    return absl::InvalidArgumentError(
        "a reference names chunks that follow each other\n  name one range with --chunks");
  }
  const CellReference reference = ReferenceTo(corpus, run->begin, run->end, options.position);
  CKV_ASSIGN_OR_RETURN(const std::vector<int32_t> token_ids,
                       FetchTokenIds(fleet, corpus, ordinals, deadline));
  CKV_RETURN_IF_ERROR(WriteReference(options, geometry, token_ids, reference));
  PrintBeside(
      ctl, options.out,
      RenderFields({{"wrote", options.out},
                    {"corpus", absl::StrFormat("%s version %d", corpus.name, corpus.version)},
                    {"chunks", std::to_string(ordinals.size())},
                    {"tokens", std::to_string(reference.token_count)},
                    {"position", std::to_string(reference.position)}}),
      {{"out", options.out},
       {"corpus", corpus.name},
       {"version", corpus.version},
       {"chunk_count", ordinals.size()},
       {"token_count", reference.token_count},
       {"position", reference.position}});
  return absl::OkStatus();
}

}  // namespace

void AddAttachCommand(CLI::App& app, Ctl& ctl) {
  const auto options = std::make_shared<AttachOptions>();
  CLI::App* verb = AddVerb(
      app, "attach", "Write a state of llama.cpp that stands for chunks, and has no rows",
      "  ckvctl attach --corpus docs --position 0 --out docs.ggsq --streams 4\n\n"
      "A sequence that restores FILE.ggsq has one cell a layer, whatever the number of tokens.\n"
      "Its key names the chunks that it stands for. llama.cpp with libggml-ckv.so asks their "
      "holders\n"
      "(the page llama.md of the handbook). Without it all logits are NaN, and greedy sampling\n"
      "then gives token 0 without an error. ckvctl fetch writes the rows themselves.");
  verb->add_option("--corpus", options->corpus, "The corpus")->required()->type_name("NAME");
  verb->add_option("--chunks", options->chunks, kChunksHelp)->check(NotEmpty())->type_name("LIST");
  verb->add_option("--out", options->out, "Sequence state to write")->required()->type_name("FILE");
  verb->add_option("--position", options->position,
                   "Position of the first token (default: canonical)")
      ->check(WholeNumber());
  verb->add_option("--streams", options->streams,
                   "Streams of the cache that loads a sequence state (default: 1)")
      ->check(InRange(1u, kLlamaStreamCountMax));
  AddTimeout(*verb, "--timeout", options->timeout_ms, "Limit of asking for all token ids");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunAttach(ctl, *options); }; });
}

}  // namespace ckv::ctl
