#include "server/web/corpus_json.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace ckv {
namespace {

using Json = nlohmann::ordered_json;

// The sets of holders of the examined chunks, numbered in the order of appearance.
class HolderGroups {
 public:
  // Returns the group of the chunk, or -1 if there are too many groups.
  int64_t Of(const ChunkPlacement& chunk) {
    std::vector<size_t> group;
    for (const auto* ids : {&chunk.holders(), &chunk.leased()}) {
      for (const HolderId& id : *ids) group.push_back(Holder(id.name));
    }
    std::sort(group.begin(), group.end());  // the order of preference does not matter here
    const auto known = groups_.find(group);
    if (known != groups_.end()) return known->second;
    if (groups_.size() == kShownGroupCountMax) return -1;
    listed_.push_back(group);
    return groups_.emplace(std::move(group), static_cast<int64_t>(groups_.size())).first->second;
  }
  const Json& names() const { return names_; }
  const Json& listed() const { return listed_; }

 private:
  size_t Holder(const std::string& name) {
    const auto [at, is_new] = holders_.try_emplace(name, holders_.size());
    if (is_new) names_.push_back(name);
    return at->second;
  }

  absl::flat_hash_map<std::string, size_t> holders_;
  absl::flat_hash_map<std::vector<size_t>, int64_t> groups_;
  Json names_ = Json::array(), listed_ = Json::array();
};

size_t CopiesOf(const ChunkPlacement& chunk) {
  return chunk.holders().size() + chunk.leased().size();
}

}  // namespace

std::string MapOfCorpus(const Corpus& corpus) {
  const std::span<const ChunkPlacement> chunks = corpus.chunks;
  const size_t per_cell =
      std::max<size_t>(1, (chunks.size() + kShownCellCountMax - 1) / kShownCellCountMax);
  HolderGroups groups;
  Json cells = Json::array();
  for (size_t begin = 0; begin < chunks.size(); begin += per_cell) {
    const auto cell = chunks.subspan(begin, std::min(per_cell, chunks.size() - begin));
    cells.push_back(
        groups.Of(*std::min_element(cell.begin(), cell.end(), [](const auto& a, const auto& b) {
          return CopiesOf(a) < CopiesOf(b);
        })));
  }
  const uint64_t tokens = corpus.token_count();
  const Json json = {{"name", corpus.name},
                     {"version", corpus.version},
                     {"tokens", tokens},
                     {"chunks", chunks.size()},
                     {"layers", corpus.geometry.layers},
                     {"bytes", tokens * corpus.geometry.token_bytes()},
                     {"holders", groups.names()},
                     {"groups", groups.listed()},
                     {"chunks_per_cell", per_cell},
                     {"cells", cells}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";  // as StatusJson
}

absl::StatusOr<std::string> CorpusJson(const WebSources& sources, const std::string& name) {
  std::shared_ptr<const Corpus> corpus;
  if (sources.directory != nullptr) {
    if (auto got = sources.directory->Get(name, /*tenant=*/""); got.ok()) corpus = *std::move(got);
  } else if (sources.requester != nullptr) {
    corpus = sources.requester->Kept(name, /*tenant=*/"");
  }
  if (corpus == nullptr || !corpus->tenant.empty()) {
    return absl::NotFoundError("no corpus of this name that every tenant may read is known here");
  }
  return MapOfCorpus(*corpus);
}

}  // namespace ckv
