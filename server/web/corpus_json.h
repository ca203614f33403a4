// Shows where the chunks of a corpus are, as JSON for the status page.
//
//   name, version, tokens, chunks, layers, bytes
//   holders          [names]
//   groups           [[ordinals of holders]], each a set of holders that have the same chunks
//   chunks_per_cell  how many chunks a cell stands for
//   cells            [ordinals of groups]: that of the chunk among them with the fewest copies. -1
//                    if there are too many groups to list

#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "proto/corpus.h"
#include "server/web/web_sources.h"

namespace ckv {

inline constexpr size_t kShownCellCountMax = 2048;
inline constexpr size_t kShownGroupCountMax = 512;

// Draws any corpus.
std::string MapOfCorpus(const Corpus& corpus);

// Draws a corpus that every tenant may read, as the directory of this process has it, or its
// requester's last snapshot. By any thread.
//   NotFound            neither knows it.
absl::StatusOr<std::string> CorpusJson(const WebSources& sources, const std::string& name);

}  // namespace ckv
