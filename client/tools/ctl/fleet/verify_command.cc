// ckvctl corpus verify: checks in place whether every copy of a corpus is whole. RunVerify, in
// order: reads the corpus; draws the sample of chunks (DrawOrdinals); CheckCopies checks all
// copies; with --repair, RepairCopies replaces those that are not whole; then it reports a table of
// holders and the wrong copies. Verdict decides the exit code.

#include <algorithm>
#include <charconv>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/fleet/verify_run.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// Lines of copies that are not whole; -o json has all of them.
constexpr size_t kWrongLinesMax = 20;

struct VerifyOptions {
  std::string name;
  std::string sample;
  uint64_t seed = 1;
  bool repair = false;
};

// "5%" or "200" of `count` chunks; at least one if there are any.
absl::StatusOr<size_t> SampleSize(const std::string& text, size_t count) {
  if (text.empty()) return count;
  const bool percent = text.back() == '%';
  const char* const end = text.data() + text.size() - (percent ? 1 : 0);
  uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value == 0 || (percent && value > 100)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--sample %s: a number of chunks from 1, or a share of them from 1%% to 100%%", text));
  }
  const size_t wanted = percent ? (count * value + 99) / 100 : value;
  return std::min<size_t>(wanted, count);
}

std::vector<uint32_t> DrawOrdinals(size_t count, size_t wanted, uint64_t seed) {
  std::vector<uint32_t> ordinals(count);
  std::iota(ordinals.begin(), ordinals.end(), 0);
  std::mt19937_64 random(seed);
  // By hand: std::sample and std::shuffle draw differently in other libraries.
  for (size_t i = 0; i < wanted; ++i) std::swap(ordinals[i], ordinals[i + random() % (count - i)]);
  ordinals.resize(wanted);
  std::sort(ordinals.begin(), ordinals.end());
  return ordinals;
}

const char* VerdictName(const CopyCheck& copy) {
  switch (copy.verdict) {
    case v1::CHUNK_VERDICT_WHOLE:
      return "whole";
    case v1::CHUNK_VERDICT_MISSING:
      return "missing";
    case v1::CHUNK_VERDICT_DAMAGED:
      return "damaged";
    case v1::CHUNK_VERDICT_UNREADABLE:
      return "unreadable";
    default:
      return "no answer";
  }
}

struct Tally {
  uint64_t whole = 0, healed = 0, repaired = 0;
  uint64_t missing = 0, damaged = 0, unreadable = 0, unanswered = 0;
};

Tally Count(const HolderCheck& check) {
  Tally tally;
  for (const CopyCheck& copy : check.copies) {
    tally.whole += copy.whole();
    tally.repaired += copy.repaired;
    tally.healed += copy.whole() && !copy.repaired && !copy.why.empty();
    tally.missing += copy.verdict == v1::CHUNK_VERDICT_MISSING;
    tally.damaged += copy.verdict == v1::CHUNK_VERDICT_DAMAGED;
    tally.unreadable += copy.verdict == v1::CHUNK_VERDICT_UNREADABLE;
    tally.unanswered += copy.verdict == v1::CHUNK_VERDICT_UNSPECIFIED;
  }
  return tally;
}

double RateOf(const HolderCheck& check) {
  const double seconds = static_cast<double>(check.elapsed.count()) / 1e9;
  return seconds > 0 ? static_cast<double>(check.bytes_checked) / seconds : 0;
}

std::string HoldersText(const HolderChecks& checks) {
  Table table({{"HOLDER"},
               {"CHUNKS", true},
               {"WHOLE", true},
               {"HEALED", true},
               {"REPAIRED", true},
               {"MISSING", true},
               {"DAMAGED", true},
               {"UNREADABLE", true},
               {"CHECKED", true},
               {"RATE", true}});
  for (const auto& [name, check] : checks) {
    const Tally t = Count(check);
    if (t.unanswered == check.copies.size() && !check.status.ok()) {
      table.AddRow({name, std::to_string(check.copies.size()), "-", "-", "-", "-", "-", "-", "-",
                    "does not answer"});
      continue;
    }
    table.AddRow({name, std::to_string(check.copies.size()), std::to_string(t.whole),
                  std::to_string(t.healed), std::to_string(t.repaired), std::to_string(t.missing),
                  std::to_string(t.damaged), std::to_string(t.unreadable),
                  FormatBytes(check.bytes_checked), FormatRate(RateOf(check))});
  }
  return table.Render();
}

Json HoldersJson(const HolderChecks& checks) {
  Json holders = Json::array();
  for (const auto& [name, check] : checks) {
    const Tally t = Count(check);
    holders.push_back({{"id", name},
                       {"chunks", check.copies.size()},
                       {"whole", t.whole},
                       {"healed", t.healed},
                       {"repaired", t.repaired},
                       {"missing", t.missing},
                       {"damaged", t.damaged},
                       {"unreadable", t.unreadable},
                       {"unanswered", t.unanswered},
                       {"bytes_checked", check.bytes_checked},
                       {"bytes_per_s", RateOf(check)}});
    if (!check.status.ok()) holders.back()["error"] = std::string(check.status.message());
  }
  return holders;
}

// Copies that are not whole, or were not until this check.
struct Findings {
  std::string text;
  Json copies = Json::array();
  uint64_t bad_count = 0;  // copies that are not whole
  uint64_t unanswered_count = 0;
};

Findings Find(const Corpus& corpus, const HolderChecks& checks) {
  Findings findings;
  size_t lines = 0;
  for (const auto& [name, check] : checks) {
    for (const CopyCheck& copy : check.copies) {
      if (copy.verdict == v1::CHUNK_VERDICT_UNSPECIFIED) {
        ++findings.unanswered_count;
        continue;  // the holder's error is reported once
      }
      if (copy.whole() && copy.why.empty() && !copy.repaired) continue;
      findings.bad_count += !copy.whole();
      const ChunkId& id = corpus.chunks[copy.ordinal].id;
      const char* const verdict = copy.repaired  ? "repaired"
                                  : copy.whole() ? "healed"
                                                 : VerdictName(copy);
      findings.copies.push_back({{"ordinal", copy.ordinal},
                                 {"id", id.ToHex()},
                                 {"holder", name},
                                 {"verdict", verdict},
                                 {"why", copy.why}});
      if (++lines > kWrongLinesMax) continue;
      findings.text +=
          absl::StrFormat("%s: chunk %d (%s) %s%s%s\n", name, copy.ordinal, id.ShortHex(), verdict,
                          copy.why.empty() ? "" : ": ", Printable(copy.why));
    }
    if (!check.status.ok()) findings.text += Printable(std::string(check.status.message())) + "\n";
  }
  if (lines > kWrongLinesMax)
    findings.text += absl::StrFormat("and %d more: -o json has all\n", lines - kWrongLinesMax);
  return findings;
}

absl::Status Verdict(const Findings& findings, size_t disagreeing, bool repaired) {
  if (findings.bad_count > 0) {
    return absl::DataLossError(
        absl::StrFormat("%d of the copies %s not whole%s", findings.bad_count,
                        findings.bad_count == 1 ? "is" : "are",
                        repaired ? "" : "\n  --repair has them put again from replicas that are"));
  }
  if (disagreeing > 0) {
    return absl::DataLossError(absl::StrFormat(
        "replicas of %s differ, each whole in itself: drop the wrong ones, or load the corpus "
        "again",
        FormatCount(disagreeing, "chunk")));
  }
  if (findings.unanswered_count > 0) {
    return absl::UnavailableError(absl::StrFormat(
        "no holder answered for %d copies\n  ckvctl status shows which holders are alive",
        findings.unanswered_count));
  }
  return absl::OkStatus();
}

absl::Status RunVerify(const Ctl& ctl, const VerifyOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.name));
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, fleet.Members());
  CKV_ASSIGN_OR_RETURN(const size_t wanted, SampleSize(options.sample, corpus.chunks.size()));
  const std::vector<uint32_t> ordinals = DrawOrdinals(corpus.chunks.size(), wanted, options.seed);
  uint64_t total_bytes = 0;
  for (const uint32_t ordinal : ordinals) {
    const ChunkPlacement& chunk = corpus.chunks[ordinal];
    total_bytes += chunk.token_count * corpus.geometry.token_bytes() * chunk.holders().size();
  }
  HolderChecks checks;
  {
    const auto progress = ctl.StartProgress("verify", "B", total_bytes);
    checks = CheckCopies(corpus, ordinals, members, *ctl.clock,
                         [&](uint64_t bytes) { progress->Advance(bytes); });
  }
  if (options.repair)
    RepairCopies(
        corpus, members, *ctl.clock, [](uint64_t) {}, checks);
  const std::vector<uint32_t> disagreeing = Disagreeing(checks);
  Findings findings = Find(corpus, checks);
  for (const uint32_t ordinal : disagreeing) {
    findings.text +=
        absl::StrFormat("chunk %d (%s): its replicas have other rows than each other\n", ordinal,
                        corpus.chunks[ordinal].id.ShortHex());
  }
  absl::Status verdict = Verdict(findings, disagreeing.size(), options.repair);
  const std::string checked = absl::StrFormat(
      "%s of %d checked\n", FormatCount(ordinals.size(), "chunk"), corpus.chunks.size());
  ctl.Print(checked + HoldersText(checks) + findings.text, {{"corpus", corpus.name},
                                                            {"version", corpus.version},
                                                            {"chunk_count", corpus.chunks.size()},
                                                            {"checked_count", ordinals.size()},
                                                            {"whole", verdict.ok()},
                                                            {"holders", HoldersJson(checks)},
                                                            {"findings", findings.copies},
                                                            {"disagreeing", disagreeing}});
  return verdict;
}

}  // namespace

void AddVerifyCommand(CLI::App& corpus, Ctl& ctl) {
  const auto options = std::make_shared<VerifyOptions>();
  CLI::App* verify = AddVerb(
      corpus, "verify", "Check every copy of a corpus on its holder, in memory and on disk",
      "  ckvctl corpus verify docs\n  ckvctl corpus verify docs --sample 5% --seed 7\n"
      "  ckvctl corpus verify docs --repair\n\n"
      "Exit code 9: a copy is missing, damaged or unreadable, or replicas differ. Exit code 4: a\n"
      "holder does not answer. HEALED counts damage in memory or in a file that the other made\n"
      "good. A holder quarantines a damaged copy, and soon gets it again from a replica.\n"
      "--repair does not wait for that.");
  verify->add_option("NAME", options->name, "The corpus")->required();
  verify->add_option("--sample", options->sample, "Only N chunks, or P% of them, drawn at random")
      ->type_name("N|P%");
  verify->add_option("--seed", options->seed, "Seed of the draw")->capture_default_str();
  verify->add_flag("--repair", options->repair,
                   "Have copies that are missing or damaged put again from whole ones");
  verify->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunVerify(ctl, *options); }; });
}

}  // namespace ckv::ctl
