// Formats the locations of a corpus' chunks as JSON for the status page.
//
//   name, version, tokens, chunks, layers, bytes
//   holders          [names]
//   groups           [[ordinals of holders]], each a set of holders that some chunks share
//   chunks_per_cell  how many chunks a cell represents
//   cells            [ordinals of groups]: the group of the cell's chunk with the fewest copies, or
//                    -1 if there are too many groups to list

#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "proto/corpus.h"
#include "server/web/web_sources.h"

namespace ckv {

inline constexpr size_t kShownCellCountMax = 2048;
inline constexpr size_t kShownGroupCountMax = 512;

// Formats any corpus.
std::string MapOfCorpus(const Corpus& corpus);

// Formats a corpus that every tenant may read. Uses the directory of this process or, if it has
// none, its requester's last snapshot. Callable from any thread.
//   NotFound            there is no such corpus here.
absl::StatusOr<std::string> CorpusJson(const WebSources& sources, const std::string& name);

}  // namespace ckv
