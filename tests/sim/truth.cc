#include "tests/sim/truth.h"

#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/attention/reference.h"
#include "transport/wire.h"

namespace ckv::sim {
namespace {

// A reply leaves its holder within this of the look at the lease: the batch is computed in between,
// which takes no virtual time but the ticks of the clock.
constexpr int64_t kReplySlack = 5 * kMs;
// A call may return this late: other threads have the turn.
constexpr int64_t kReturnSlack = 250 * kMs;

std::span<const std::byte> Bytes(const std::vector<uint16_t>& rows) {
  return std::as_bytes(std::span(rows));
}

}  // namespace

Truth::Truth(uint64_t seed) : seed_(seed), geometry_(test::TestGeometry(/*layers=*/2)) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (uint32_t i = 0; i < kQueryCount; ++i) {
    queries_.push_back(test::RandomBf16(size_t{kQueryRows} * geometry_.d_qk, random));
  }
}

KnownCorpus& Truth::Add(std::string tenant, size_t chunk_count) {
  auto corpus = std::make_unique<KnownCorpus>();
  corpus->name = absl::StrCat("c", corpora_.size());
  corpus->tenant = std::move(tenant);
  std::mt19937 random(static_cast<uint32_t>(seed_ * 1000 + corpora_.size()));
  std::vector<uint32_t> tokens;
  for (size_t i = 0; i < chunk_count; ++i) tokens.push_back(1 + random() % 12);
  corpus->whole = test::MakeTestCorpus(geometry_, tokens, random());
  corpus->places.resize(chunk_count);
  corpora_.push_back(std::move(corpus));
  return *corpora_.back();
}

const KnownCorpus* Truth::Find(std::string_view name) const {
  for (const auto& corpus : corpora_) {
    if (corpus->name == name) return corpus.get();
  }
  return nullptr;
}

void Truth::Breach(const std::string& text) {
  if (!failed()) breach_ = absl::StrFormat("at %d ms: %s", Sim().now() / kMs, text);
}

Truth::Rows Truth::Reference(const Question& question, double& tolerance) const {
  const std::vector<uint16_t> rows =
      question.corpus->whole.Rows(question.layer, 0, question.chunk_count);
  AttentionPiece piece;
  piece.q = {queries_[question.query].data(), kQueryRows, geometry_.d_qk};
  piece.rows = {reinterpret_cast<const std::byte*>(rows.data()),
                static_cast<uint32_t>(rows.size() / geometry_.d_qk), geometry_.row_bytes()};
  const auto partials = reference::Attend(AttentionShape::Of(geometry_), piece);
  Rows want;
  double largest = 0;
  for (const reference::Partial& partial : partials) {
    for (const double value : partial.o) {
      want.o.push_back(static_cast<float>(value));
      largest = std::max(largest, std::fabs(value));
    }
    want.m.push_back(static_cast<float>(partial.m));
    want.l.push_back(static_cast<float>(partial.l));
  }
  // 96 products and sums of f32 in a logit, and 2^-24 for each row and merge.
  tolerance = 2e-5 * std::max(largest, 1.0);
  return want;
}

void Truth::CheckAnswer(const Question& question, const Rows& answer) {
  ++answer_count_;
  const Key key = {question.corpus->name, question.chunk_count, question.layer, question.query};
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  const std::string what =
      absl::StrFormat("%s, %d chunks, layer %d, query %d", question.corpus->name,
                      question.chunk_count, question.layer, question.query);
  if (const auto first = answers_.find(key); first != answers_.end()) {
    if (same(first->second.o, answer.o) && same(first->second.m, answer.m) &&
        same(first->second.l, answer.l)) {
      return;
    }
    return Breach(absl::StrCat("I2: other bits than the first answer: ", what));
  }
  double tolerance = 0;
  const Rows want = Reference(question, tolerance);
  for (size_t i = 0; i < want.o.size(); ++i) {
    if (!(std::fabs(answer.o[i] - want.o[i]) <= tolerance)) {
      return Breach(
          absl::StrFormat("I2: o[%d] is %g, should be %g: %s", i, answer.o[i], want.o[i], what));
    }
  }
  for (size_t i = 0; i < want.l.size(); ++i) {
    const double l = answer.l[i] * std::exp(double{answer.m[i]} - want.m[i]);
    if (!(std::fabs(l - want.l[i]) <= 1e-4 * want.l[i])) {
      return Breach(absl::StrFormat("I1: the weight of row %d is %g, should be %g: %s", i, l,
                                    want.l[i], what));
    }
  }
  answers_[key] = answer;
}

void Truth::CheckCorpus(const Corpus& corpus, std::string_view tenant) {
  const KnownCorpus* const known = Find(corpus.name);
  if (known == nullptr || (!corpus.tenant.empty() && known->tenant != tenant)) {
    return Breach(absl::StrFormat("tenant %s reads corpus %s", tenant, corpus.name));
  }
  if (!known->lengths.contains(corpus.chunks.size())) {
    return Breach(absl::StrFormat("%s has %d chunks, which nobody published", corpus.name,
                                  corpus.chunks.size()));
  }
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    if (corpus.chunks[i].id != known->whole.chunks[i].info.id) {
      return Breach(absl::StrFormat("%s: chunk %d is another one", corpus.name, i));
    }
  }
}

// A chunk of a version that was not published may be there or not, but not in part.
void Truth::CheckHolder(Life& life) {
  // A check takes virtual time, in which the operator may add a corpus: no iterator of them lasts.
  for (size_t c = 0; c < corpora_.size(); ++c) {
    const KnownCorpus& corpus = *corpora_[c];
    for (size_t i = 0; i < corpus.places.size(); ++i) CheckChunk(life, corpus, i);
  }
}

void Truth::CheckChunk(Life& life, const KnownCorpus& corpus, size_t i) {
  const uint32_t node = life.process.node;
  // Asked again after each step that takes virtual time, in which a bit may be flipped.
  const auto is_flipped = [&] {
    const auto flip = corpus.flipped.find(i);
    return flip != corpus.flipped.end() && flip->second == node;
  };
  const bool must_be_there = corpus.places[i].contains(node) && !corpus.drop_began && !is_flipped();
  const test::TestChunk& chunk = corpus.whole.chunks[i];
  ChunkStore& store = life.holder->store();
  const auto found = store.table().Find(chunk.info.id, geometry_, corpus.tenant);
  if (!found.ok()) {
    if (!must_be_there) return;
    return Breach(absl::StrFormat("I3: %s lost chunk %d of %s, which it acknowledged: %s",
                                  life.process.name, i, corpus.name,
                                  std::string(found.status().message())));
  }
  const auto pin = store.Load(*found);
  if (absl::IsDataLoss(pin.status()) && !is_flipped()) {
    return Breach(absl::StrFormat("I3: %s: chunk %d of %s is damaged: %s", life.process.name, i,
                                  corpus.name, std::string(pin.status().message())));
  }
  if (!pin.ok()) return;  // a fault of the disk
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    const auto want = Bytes(chunk.layers[layer]);
    const std::span<const std::byte> rows = pin->chunk().layer(layer);
    if (rows.size() != want.size() || std::memcmp(rows.data(), want.data(), want.size()) != 0) {
      return Breach(absl::StrFormat("I3: %s: chunk %d of %s has other bytes", life.process.name, i,
                                    corpus.name));
    }
  }
}

void Truth::CheckQuarantine(const Life& life, SimDisk& disk) {
  std::set<std::string> flipped;
  for (const auto& corpus : corpora_) {
    for (const auto& [chunk, node] : corpus->flipped) {
      if (node == life.process.node) flipped.insert(corpus->whole.chunks[chunk].info.id.ToHex());
    }
  }
  const auto there = disk.List("/store/quarantine");
  if (!there.ok()) return;
  for (const FolderEntry& file : *there) {
    if (flipped.contains(file.name.substr(0, file.name.find('.')))) continue;
    Breach(absl::StrFormat("I3: %s put %s aside", life.process.name, file.name));
  }
}

void Truth::CheckDrained(DirectoryState& directory, const HolderId& holder) {
  for (size_t c = 0; c < corpora_.size(); ++c) {
    const KnownCorpus* const corpus = corpora_[c].get();
    const auto found = directory.Get(corpus->name, corpus->tenant);
    if (!found.ok()) continue;
    for (size_t i = 0; i < (*found)->chunks.size(); ++i) {
      for (const HolderId& has : (*found)->chunks[i].holders()) {
        if (has != holder) continue;
        return Breach(absl::StrFormat("drain: %s may go, but chunk %d of %s is to be read there",
                                      holder.name, i, corpus->name));
      }
    }
  }
}

void Truth::CheckDirectory(Life& life, absl::FunctionRef<bool()> counts) {
  for (size_t c = 0; c < corpora_.size(); ++c) {
    const KnownCorpus* const corpus = corpora_[c].get();
    const size_t acknowledged = corpus->acknowledged;
    if (corpus->drop_began || acknowledged == 0) continue;
    const auto found = life.directory->Get(corpus->name, corpus->tenant);
    if (found.ok() && (*found)->chunks.size() >= acknowledged) continue;
    if (corpus->drop_began || !counts()) return;
    return Breach(absl::StrFormat(
        "I3: the directory lost %s, of which %d chunks were acknowledged; it has %d", corpus->name,
        acknowledged, found.ok() ? (*found)->chunks.size() : 0));
  }
}

void Truth::NotePut(uint32_t holder, const ChunkId& id) {
  for (const auto& corpus : corpora_) {
    for (size_t i = 0; i < corpus->whole.chunks.size(); ++i) {
      if (corpus->whole.chunks[i].info.id == id) corpus->places[i].insert(holder);
    }
  }
}

void Truth::CheckPublished(const Corpus& corpus, const std::vector<std::unique_ptr<Node>>& nodes) {
  for (const auto& known : corpora_) {
    if (known->name != corpus.name) continue;
    // Copies of earlier ones are made by the fleet itself, too.
    for (size_t i = known->submitted; i < corpus.chunks.size(); ++i) {
      for (const HolderId& holder : corpus.chunks[i].holders()) {
        const auto node = std::find_if(nodes.begin(), nodes.end(),
                                       [&](const auto& one) { return one->name == holder.name; });
        if (node != nodes.end() && known->places[i].contains((*node)->number)) continue;
        return Breach(absl::StrFormat("I3: %s is to be published, but %s has not chunk %d",
                                      corpus.name, holder.name, i));
      }
    }
    known->submitted = std::max(known->submitted, corpus.chunks.size());
  }
}

void Truth::CheckReply(const ReplySent& sent, const Life& life) {
  RequestHeader request;
  ReplyHeader reply;
  if (sent.request.size() < sizeof(request) || sent.reply.size() < sizeof(reply)) return;
  std::memcpy(&request, sent.request.data(), sizeof(request));
  std::memcpy(&reply, sent.reply.data(), sizeof(reply));
  if (reply.kind == WireKind::kProbe || reply.code != 0) return;
  const int64_t now = Sim().now();
  // A process that was stopped between its look at the lease and its reply is late by that.
  const int64_t slack = kReplySlack;
  if (life.process.stopped_until > now - 2 * kReplySlack) return;
  if (now > life.may_answer_until + slack) {
    return Breach(absl::StrFormat("I4: %s answers %d us after half of its lease", life.process.name,
                                  (now - life.may_answer_until) / kUs));
  }
  const bool changed_now = now - life.epoch_changed_at < kReplySlack;
  if (request.epoch != life.epoch.value &&
      !(changed_now && request.epoch == life.epoch_before.value)) {
    return Breach(absl::StrFormat("I4: %s answers a request of epoch %d in epoch %d",
                                  life.process.name, request.epoch, life.epoch.value));
  }
}

void Truth::CheckReturned(std::string_view call, const Life& life, int64_t deadline) {
  const int64_t late = Sim().now() - std::max(deadline, life.process.stopped_until);
  if (late <= kReturnSlack) return;
  Breach(absl::StrFormat("I5: %s returned %d ms after its deadline", call, late / kMs));
}

}  // namespace ckv::sim
