// Formats the measurements of agents compare, without any I/O. RenderPolicies makes a row for each
// policy. AutoVerdict compares auto with the fastest policy, and with the one that uses the most
// time, traffic or memory.

#include "client/tools/ctl/query/compare_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace ckv::ctl {
namespace {

// The factor within which auto is to be of the fastest policy.
constexpr double kAutoFactor = 1.05;

std::string Percent(double part) { return absl::StrFormat("%.0f %%", 100 * part); }

std::string SavedCell(const Saving& saving) {
  if (saving.within_noise) return "within noise";
  return saving.share() > 0 ? Percent(saving.share()) : "nothing";
}

Json SavingToJson(const Saving& saving) {
  return {{"auto", saving.by_auto},
          {"worst", saving.worst},
          {"policy", saving.policy},
          {"share", saving.share()}};
}

// The row of a policy that finished.
std::vector<std::string> FinishedRow(const Compared& one, double factor) {
  const PolicyResult& result = *one.fastest;
  return {one.policy,
          absl::StrFormat("%.2f s", one.seconds()),
          absl::StrFormat("%.2f x", factor),
          absl::StrFormat("%.2f s", one.call_seconds()),
          one.predicted_s ? absl::StrFormat("%.2f s", *one.predicted_s) : "-",
          FormatBytes(result.routed_bytes),
          FormatBytes(result.prefetched_bytes),
          FormatBytes(result.mapped_bytes),
          FormatBytes(result.local_cache_bytes),
          Percent(result.cached_share()),
          one.different == 0 ? "equal" : "DIFFERS"};
}

Json FinishedJson(const Compared& one, double factor) {
  const PolicyResult& result = *one.fastest;
  Json rounds = Json::array();
  for (const Duration round : one.rounds) rounds.push_back(double(round.count()) / 1e9);
  return {{"policy", one.policy},
          {"seconds", one.seconds()},
          {"rounds_s", rounds},
          {"of_fastest", factor},
          {"call_seconds", one.call_seconds()},
          {"predicted_seconds", one.predicted_s ? Json(*one.predicted_s) : Json()},
          {"bytes_routed", result.routed_bytes},
          {"bytes_prefetched", result.prefetched_bytes},
          {"bytes_mapped", result.mapped_bytes},
          {"bytes_memory", result.local_cache_bytes},
          {"cached_share", result.cached_share()},
          {"equal", one.different == 0}};
}

// Why a policy did not finish, in words.
std::string WhyNot(const Compared& one, uint64_t capacity_bytes) {
  if (!one.need_bytes.has_value()) return "failed: " + std::string(one.failure.message());
  return absl::StrFormat(
      "does not fit: an agent's rows take %s, and --local-cache-mib gives them %s",
      FormatBytes(*one.need_bytes), FormatBytes(capacity_bytes));
}

}  // namespace

std::optional<double> Compared::noise_s() const {
  if (rounds.size() < 2) return std::nullopt;
  std::vector<Duration> sorted = rounds;
  std::sort(sorted.begin(), sorted.end());
  return static_cast<double>((sorted[sorted.size() / 2] - sorted.front()).count()) / 1e9;
}

std::optional<AutoVerdict> AutoVerdict::Of(std::span<const Compared> compared) {
  const auto by_itself = std::find_if(compared.begin(), compared.end(),
                                      [](const Compared& one) { return one.policy == "auto"; });
  if (by_itself == compared.end() || !by_itself->finished()) return std::nullopt;
  AutoVerdict verdict(*by_itself);
  for (const Compared& one : compared) {
    if (&one != &*by_itself && one.finished()) verdict.fixed_.push_back(&one);
  }
  if (verdict.fixed_.empty()) return std::nullopt;
  std::stable_sort(
      verdict.fixed_.begin(), verdict.fixed_.end(),
      [](const Compared* a, const Compared* b) { return a->seconds() < b->seconds(); });
  return verdict;
}

double AutoVerdict::factor() const { return auto_.seconds() / fixed_.front()->seconds(); }

std::optional<double> AutoVerdict::noise() const {
  const Compared& fastest = *fixed_.front();
  const auto of_auto = auto_.noise_s(), of_fastest = fastest.noise_s();
  if (!of_auto.has_value() || !of_fastest.has_value()) return std::nullopt;
  return std::max(*of_auto, *of_fastest) / fastest.seconds();
}

std::string AutoVerdict::Describe() const {
  const std::string& policy = fixed_.front()->policy;
  const std::optional<double> noise = this->noise();
  if (noise.has_value() && std::abs(factor() - 1) <= *noise) {
    return absl::StrFormat(
        "auto: within noise of the fastest, %s: %.2f x its time, and rounds differ by %s", policy,
        factor(), Percent(*noise));
  }
  if (factor() <= 1)
    return absl::StrFormat("auto: the fastest, %.2f x the time of %s", factor(), policy);
  std::string text =
      absl::StrFormat("auto: took %.2f x the time of the fastest, %s; ", factor(), policy);
  if (factor() <= kAutoFactor) return text + "within 5 %";
  text += "more than 5 % above it";
  if (noise.has_value()) text += absl::StrFormat(", and rounds differ by %s", Percent(*noise));
  return text;
}

template <class Figure>
Saving AutoVerdict::SavingOf(Figure figure) const {
  Saving saving;
  saving.by_auto = figure(auto_);
  for (const Compared* one : fixed_) {
    if (!saving.policy.empty() && figure(*one) <= saving.worst) continue;
    saving.worst = figure(*one);
    saving.policy = one->policy;
  }
  return saving;
}

Saving AutoVerdict::time() const {
  Saving saving = SavingOf([](const Compared& one) { return one.seconds(); });
  const auto worst = std::find_if(fixed_.begin(), fixed_.end(), [&](const Compared* one) {
    return one->policy == saving.policy;
  });
  const auto of_auto = auto_.noise_s(), of_worst = (*worst)->noise_s();
  saving.within_noise = of_auto.has_value() && of_worst.has_value() &&
                        std::abs(saving.worst - saving.by_auto) <= std::max(*of_auto, *of_worst);
  return saving;
}

Saving AutoVerdict::bytes_moved() const {
  return SavingOf([](const Compared& one) {
    return static_cast<double>(one.fastest->routed_bytes + one.fastest->prefetched_bytes);
  });
}

Saving AutoVerdict::bytes_memory() const {
  return SavingOf(
      [](const Compared& one) { return static_cast<double>(one.fastest->local_cache_bytes); });
}

std::string AutoVerdict::RenderSavings() const {
  Table table(
      {{"WHAT AUTO SAVED"}, {"AUTO", true}, {"WORST", true}, {"FIXED POLICY"}, {"SAVED", true}});
  const Saving time = this->time();
  table.AddRow({"time", absl::StrFormat("%.2f s", time.by_auto),
                absl::StrFormat("%.2f s", time.worst), time.policy, SavedCell(time)});
  const auto add = [&](const char* what, const Saving& saving) {
    table.AddRow({what, FormatBytes(static_cast<uint64_t>(saving.by_auto)),
                  FormatBytes(static_cast<uint64_t>(saving.worst)), saving.policy,
                  SavedCell(saving)});
  };
  add("bytes moved", bytes_moved());
  add("memory", bytes_memory());
  return table.Render();
}

Json AutoVerdict::SavingsToJson() const {
  return {{"seconds", SavingToJson(time())},
          {"bytes_moved", SavingToJson(bytes_moved())},
          {"bytes_memory", SavingToJson(bytes_memory())}};
}

const Compared& FastestOf(std::span<const Compared> compared) {
  const Compared* fastest = nullptr;
  for (const Compared& one : compared) {
    if (one.finished() && (fastest == nullptr || one.seconds() < fastest->seconds()))
      fastest = &one;
  }
  return *fastest;
}

CompareReport RenderPolicies(std::span<const Compared> compared, uint64_t capacity_bytes) {
  const Compared& fastest = FastestOf(compared);
  Table table({{"POLICY"},
               {"TIME", true},
               {"OF FASTEST", true},
               {"IN CALLS", true},
               {"PREDICTED", true},
               {"ROUTED", true},
               {"PREFETCHED", true},
               {"MAPPED", true},
               {"MEMORY", true},
               {"CACHED", true},
               {"CHECK"}});
  CompareReport report;
  report.policies = Json::array();
  std::string others;
  for (const Compared& one : compared) {
    if (one.finished()) {
      const double factor = one.seconds() / fastest.seconds();
      table.AddRow(FinishedRow(one, factor));
      report.policies.push_back(FinishedJson(one, factor));
      continue;
    }
    std::vector<std::string> row(11, "-");
    row[0] = one.policy;
    row[1] = one.need_bytes.has_value() ? "does not fit" : "failed";
    table.AddRow(std::move(row));
    const std::string why = WhyNot(one, capacity_bytes);
    others += one.policy + ": " + why + "\n";
    Json json = {{"policy", one.policy}, {"error", why}};
    if (one.need_bytes.has_value()) {
      json["need_bytes"] = *one.need_bytes;
      json["room_bytes"] = capacity_bytes;
    }
    report.policies.push_back(std::move(json));
  }
  report.text = table.Render();
  if (!others.empty()) report.text += "\n" + others;
  return report;
}

}  // namespace ckv::ctl
