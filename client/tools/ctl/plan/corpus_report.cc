// Formats a CorpusPlan. AnswerText is the first line; each table has a function of its own. JSON
// lists are flat, and CSV files are made of them.

#include "client/tools/ctl/plan/corpus_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cost/what_if.h"

namespace ckv::ctl {
namespace {

std::string UsText(double us) { return std::isfinite(us) ? FormatMicroseconds(us) : "never"; }
std::string ShareText(double share) {
  return std::isfinite(share) ? absl::StrFormat("%.0f %%", 100 * share) : "-";
}
std::string PlanBytesText(double bytes) {
  return std::isfinite(bytes) ? FormatBytes(static_cast<uint64_t>(std::min(bytes, 1e18))) : "-";
}
std::string PlanRateText(double per_s) {
  return std::isfinite(per_s) ? absl::StrFormat("%.3g", per_s) : "-";
}

std::string MachineName(const CorpusPlanInput& input, const HolderPlan& plan) {
  return Printable(input.machines[plan.machine].name);
}

// The plan that stands for a kind: the best, or the largest if none meets the goal.
const HolderPlan& Shown(const MachineChoice& choice) {
  return choice.best ? *choice.best : choice.most;
}

bool IsTime(PlanLimit limit) { return limit == PlanLimit::kP50 || limit == PlanLimit::kP99; }

// Returns, for example, "p99 goal: 2.3 ms, 2.0 ms wanted".
std::string UseText(const HolderPlan& plan, PlanLimit limit) {
  const LimitUse& use = plan.use(limit);
  const std::string name = NameOf(limit);
  if (IsTime(limit))
    return absl::StrFormat("%s: %s, %s wanted", name, UsText(use.used), UsText(use.allowed));
  switch (limit) {
    case PlanLimit::kMemory:
    case PlanLimit::kDisk:
      return absl::StrFormat("%s: %s needed, %s there", name, PlanBytesText(use.used),
                             PlanBytesText(use.allowed));
    case PlanLimit::kDomains:
      return absl::StrFormat("%s: %.0f holders, %.0f needed", name, use.allowed, use.used);
    case PlanLimit::kCache:
      return absl::StrFormat("%s: %.3g tokens needed, %.3g there", name, use.used, use.allowed);
    default:
      return absl::StrFormat("%s: %s used, %s allowed", name, ShareText(use.used),
                             ShareText(use.allowed));
  }
}

std::string WhyNotText(const CorpusPlanInput& input, const MachineChoice& choice) {
  std::string text =
      absl::StrFormat("%d x %s: %s", choice.most.holders, MachineName(input, choice.most),
                      UseText(choice.most, choice.binds));
  if (choice.too_slow) {
    const PlanTerms& terms = choice.most.terms;
    absl::StrAppendFormat(
        &text,
        ". More holders do not help: a call that never waits takes %s a layer "
        "(probe %s, transfer %s, kernel %s, merge %s)",
        UsText(terms.probe_us + terms.transfer_us + terms.compute_us + terms.merge_us),
        UsText(terms.probe_us), UsText(terms.transfer_us), UsText(terms.compute_us),
        UsText(terms.merge_us));
  }
  return text;
}

std::string AnswerText(const CorpusPlanInput& input, const CorpusPlan& plan) {
  if (!plan.cheapest) {
    std::string text = "No machine on offer meets the goal.";
    for (const MachineChoice& choice : plan.machines) text += "\n  " + WhyNotText(input, choice);
    return text;
  }
  const MachineChoice& choice = plan.machines[*plan.cheapest];
  const HolderPlan& best = *choice.best;
  const bool per_step = input.goal.per_step;
  return absl::StrFormat(
      "Take %s of %s: %.2f an hour, %.2f per million steps. A %s adds %s (p50), %s (p99).",
      FormatCount(best.holders, "holder"), MachineName(input, best), best.price_per_hour,
      best.price_per_million_steps, per_step ? "step" : "layer",
      UsText(per_step ? best.step_us_p50 : best.layer_us_p50),
      UsText(per_step ? best.step_us_p99 : best.layer_us_p99));
}

std::string BindsText(const MachineChoice& choice) {
  if (!choice.best) return absl::StrFormat("%s, not met", NameOf(choice.binds));
  return NameOf(choice.binds);
}

std::string MachinesText(const CorpusPlanInput& input, const CorpusPlan& plan) {
  Table table({{.title = "MACHINE", .key = true},
               {.title = "HOLDERS", .right = true},
               {.title = "SHARDS", .right = true},
               {.title = "MEMORY", .right = true},
               {.title = "ROWS/S", .right = true},
               {.title = "OF", .right = true},
               {.title = "KERNEL", .right = true},
               {.title = "LINK", .right = true},
               {.title = "REQUESTER", .right = true},
               {.title = "PRICE/H", .right = true},
               {.title = "PER 1M STEPS", .right = true},
               {.title = "BOUND BY"}});
  for (const MachineChoice& choice : plan.machines) {
    const HolderPlan& at = Shown(choice);
    table.AddRow({MachineName(input, at), std::to_string(at.holders),
                  absl::StrFormat("%.3g", at.shards), PlanBytesText(at.memory_bytes),
                  PlanRateText(at.rows_per_s), PlanRateText(at.rows_per_s_max),
                  ShareText(at.use(PlanLimit::kKernel).used),
                  ShareText(at.use(PlanLimit::kHolderNetwork).used),
                  ShareText(at.use(PlanLimit::kRequesterLink).used),
                  absl::StrFormat("%.2f", at.price_per_hour),
                  absl::StrFormat("%.3g", at.price_per_million_steps), BindsText(choice)});
  }
  return table.Render();
}

std::string TermsText(const CorpusPlanInput& input, const CorpusPlan& plan) {
  Table table({{.title = "A LAYER", .key = true},
               {.title = "BY"},
               {.title = "PROBE", .right = true},
               {.title = "TRANSFER", .right = true},
               {.title = "KERNEL", .right = true},
               {.title = "MERGE", .right = true},
               {.title = "WAIT", .right = true},
               {.title = "P50", .right = true},
               {.title = "P99", .right = true},
               {.title = "STEP P50", .right = true},
               {.title = "STEP P99", .right = true}});
  for (const MachineChoice& choice : plan.machines) {
    const HolderPlan& at = Shown(choice);
    const PlanTerms& terms = at.terms;
    table.AddRow({MachineName(input, at), std::string(PrimitiveName(at.primitive)),
                  UsText(terms.probe_us), UsText(terms.transfer_us), UsText(terms.compute_us),
                  UsText(terms.merge_us), UsText(terms.wait_us), UsText(at.layer_us_p50),
                  UsText(at.layer_us_p99), UsText(at.step_us_p50), UsText(at.step_us_p99)});
  }
  return table.Render();
}

// The least, the best and its neighbour, twice as many, and all.
std::string HoldersText(const CorpusPlanInput& input, const CorpusPlan& plan) {
  Table table({{.title = "MACHINE", .key = true},
               {.title = "HOLDERS", .right = true, .key = true},
               {.title = "MEMORY", .right = true},
               {.title = "KERNEL", .right = true},
               {.title = "WAIT", .right = true},
               {.title = "P50", .right = true},
               {.title = "P99", .right = true},
               {.title = "PRICE/H", .right = true},
               {.title = "TIGHTEST"}});
  for (const MachineChoice& choice : plan.machines) {
    std::vector<uint32_t> counts = {choice.least.holders, choice.most.holders};
    if (choice.best) {
      const uint32_t best = choice.best->holders;
      counts.insert(counts.end(),
                    {std::max(1u, best - 1), best, std::min(2 * best, choice.most.holders)});
    }
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    for (const uint32_t holders : counts) {
      const HolderPlan at = PlanHolders(input, choice.machine, holders);
      table.AddRow({MachineName(input, at), std::to_string(holders), PlanBytesText(at.memory_bytes),
                    ShareText(at.use(PlanLimit::kKernel).used), UsText(at.terms.wait_us),
                    UsText(at.layer_us_p50), UsText(at.layer_us_p99),
                    absl::StrFormat("%.2f", at.price_per_hour), UseText(at, at.Tightest())});
    }
  }
  return table.Render();
}

std::string CorpusChangesText(const CorpusPlanInput& input, const CorpusPlan& plan) {
  Table table({{.title = "CHANGE", .key = true},
               {.title = "MACHINE"},
               {.title = "HOLDERS", .right = true},
               {.title = "PRICE/H", .right = true},
               {.title = "MORE", .right = true},
               {.title = "BOUND BY"}});
  for (const PlanChange& one : plan.changes) {
    if (!one.best) {
      table.AddRow(
          {one.change, "none", "-", "-", "-", absl::StrFormat("%s, not met", NameOf(one.binds))});
      continue;
    }
    std::string more = "-";
    if (plan.cheapest) {
      const double before = plan.machines[*plan.cheapest].best->price_per_hour;
      if (before > 0)
        more = absl::StrFormat("%+.1f %%", 100 * (one.best->price_per_hour / before - 1));
    }
    table.AddRow({one.change, MachineName(input, *one.best), std::to_string(one.best->holders),
                  absl::StrFormat("%.2f", one.best->price_per_hour), more, NameOf(one.binds)});
  }
  return table.Render();
}

// The cost of each primitive over a session.
std::string ChoiceText(const HolderPlan& at) {
  const Decision& decision = at.decision;
  if (!decision.choice) return "nothing is offered";
  std::string text;
  for (size_t i = 0; i < kPrimitiveCount; ++i) {
    const auto one = static_cast<Primitive>(i);
    const CostBreakdown& cost = decision.cost(one);
    text += absl::StrFormat("%s%s %s", text.empty() ? "" : ", ", PrimitiveName(one),
                            cost.offered ? UsText(cost.total_us) : "not offered");
  }
  if (at.loaded_choice && at.loaded_choice != decision.choice)
    absl::StrAppendFormat(&text, "; with the waits, %s", PrimitiveName(*at.loaded_choice));
  return text;
}

Json HolderJson(const CorpusPlanInput& input, const HolderPlan& at) {
  const PlanTerms& terms = at.terms;
  const PlanLimit tightest = at.Tightest();
  const auto used = [&](PlanLimit limit) { return at.use(limit).used; };
  return {{"machine", MachineName(input, at)},
          {"holders", at.holders},
          {"holders_alive", at.holders_alive},
          {"shards", at.shards},
          {"holders_per_call", at.holders_per_call},
          {"memory_bytes", at.memory_bytes},
          {"calls_per_s", at.calls_per_s},
          {"rows_per_s", at.rows_per_s},
          {"rows_per_s_max", at.rows_per_s_max},
          {"kernel_utilisation", used(PlanLimit::kKernel)},
          {"holder_link_utilisation", used(PlanLimit::kHolderNetwork)},
          {"requester_link_utilisation", used(PlanLimit::kRequesterLink)},
          {"network_utilisation", used(PlanLimit::kNetwork)},
          {"primitive", PrimitiveName(at.primitive)},
          {"probe_us", terms.probe_us},
          {"transfer_us", terms.transfer_us},
          {"compute_us", terms.compute_us},
          {"merge_us", terms.merge_us},
          {"wait_us", terms.wait_us},
          {"once_us", terms.once_us},
          {"layer_us_mean", at.layer_us_mean},
          {"layer_us_p50", at.layer_us_p50},
          {"layer_us_p99", at.layer_us_p99},
          {"step_us_p50", at.step_us_p50},
          {"step_us_p99", at.step_us_p99},
          {"price_per_hour", at.price_per_hour},
          {"price_per_million_steps", at.price_per_million_steps},
          {"meets_goal", at.meets()},
          {"tightest", NameOf(tightest)},
          {"tightest_ratio", at.use(tightest).Ratio()}};
}

Json ChoiceRows(const CorpusPlanInput& input, const HolderPlan& at) {
  Json rows = Json::array();
  for (size_t i = 0; i < kPrimitiveCount; ++i) {
    const auto one = static_cast<Primitive>(i);
    const CostBreakdown& cost = at.decision.cost(one);
    rows.push_back({{"machine", MachineName(input, at)},
                    {"primitive", PrimitiveName(one)},
                    {"offered", cost.offered},
                    {"why_not", cost.why_not},
                    {"chosen", at.decision.choice == one},
                    {"chosen_with_waits", at.loaded_choice == one},
                    {"probe_us", cost.probe_us},
                    {"transfer_us", cost.transfer_us},
                    {"compute_us", cost.compute_us},
                    {"merge_us", cost.merge_us},
                    {"splice_us", cost.splice_us},
                    {"prefill_us", cost.prefill_us},
                    {"evict_us", cost.evict_us},
                    {"session_us", cost.offered ? Json(cost.total_us) : Json()}});
  }
  return rows;
}

Json ChangeRows(const CorpusPlanInput& input, const CorpusPlan& plan) {
  Json rows = Json::array();
  for (const PlanChange& one : plan.changes) {
    rows.push_back({{"change", one.change},
                    {"machine", one.best ? Json(MachineName(input, *one.best)) : Json()},
                    {"holders", one.best ? Json(one.best->holders) : Json()},
                    {"price_per_hour", one.best ? Json(one.best->price_per_hour) : Json()},
                    {"bound_by", NameOf(one.binds)}});
  }
  return rows;
}

Json LoadJson(const CorpusPlanInput& input) {
  const PlanLoad& load = input.load;
  const double steps_per_s = load.agents * load.steps_per_s;
  return {{"agents", load.agents},
          {"steps_per_s", steps_per_s},
          {"query_rows", load.query_rows},
          {"context_tokens", load.context_tokens},
          {"selected", load.selected},
          {"far_calls_per_s", steps_per_s * input.corpus.geometry.layers * (1 - load.near_share)}};
}

Json Maybe(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace

std::string CorpusPlanText(const CorpusPlanInput& input, const CorpusPlan& plan) {
  const PlanCorpus& corpus = input.corpus;
  const double bytes = corpus.tokens * double(corpus.geometry.token_bytes());
  const Json load = LoadJson(input);
  std::string text = AnswerText(input, plan) + "\n\n";
  std::vector<std::pair<std::string, std::string>> fields = {
      {"corpus", absl::StrFormat("%.4g tokens, %s; %s with all copies", corpus.tokens,
                                 PlanBytesText(bytes), PlanBytesText(bytes * corpus.replicas))},
      {"domains",
       absl::StrFormat("%d, of which %d may be lost", corpus.domains, corpus.domains_lost)},
      {"load",
       absl::StrFormat("%.4g steps/s, %.4g calls/s of %s to holders",
                       load["steps_per_s"].get<double>(), load["far_calls_per_s"].get<double>(),
                       FormatCount(input.load.query_rows, "query row"))}};
  for (const MachineChoice& choice : plan.machines) {
    const HolderPlan& at = Shown(choice);
    fields.emplace_back("session on " + MachineName(input, at), ChoiceText(at));
  }
  text += RenderFields(fields) + "\n" + MachinesText(input, plan) + "\n" + TermsText(input, plan) +
          "\n" + HoldersText(input, plan) + "\n" + CorpusChangesText(input, plan);
  return text +
         "\nWaits are those of M/G/1 queues with as many callers as there are agents. Batches of "
         "holders,\nwhich shorten them, and the processors of requesters are not counted.\n";
}

Json CorpusPlanJson(const CorpusPlanInput& input, const CorpusPlan& plan) {
  Json json = {{"answer", AnswerText(input, plan)},
               {"corpus",
                {{"tokens", input.corpus.tokens},
                 {"bytes", input.corpus.tokens * double(input.corpus.geometry.token_bytes())},
                 {"replicas", input.corpus.replicas},
                 {"domains", input.corpus.domains},
                 {"domains_lost", input.corpus.domains_lost}}},
               {"load", LoadJson(input)},
               {"goal",
                {{"per", input.goal.per_step ? "step" : "layer"},
                 {"p50_us", Maybe(input.goal.p50_us)},
                 {"p99_us", Maybe(input.goal.p99_us)},
                 {"utilisation_max", input.goal.utilisation_max}}},
               {"cheapest", nullptr},
               {"machines", Json::array()},
               {"holders", Json::array()},
               {"choices", Json::array()},
               {"changes", ChangeRows(input, plan)}};
  for (const MachineChoice& choice : plan.machines) {
    Json row = HolderJson(input, Shown(choice));
    row["bound_by"] = NameOf(choice.binds);
    row["too_slow_without_waits"] = choice.too_slow;
    json["machines"].push_back(std::move(row));
    for (const HolderPlan& at : choice.shown) json["holders"].push_back(HolderJson(input, at));
    for (Json& one : ChoiceRows(input, Shown(choice))) json["choices"].push_back(std::move(one));
  }
  if (plan.cheapest) json["cheapest"] = json["machines"][*plan.cheapest];
  return json;
}

std::vector<CsvFile> CorpusPlanCsv(const Json& json) {
  std::vector<CsvFile> files;
  for (const char* table : {"machines", "holders", "choices", "changes"})
    files.push_back({std::string(table) + ".csv", CsvOf(json[table])});
  return files;
}

}  // namespace ckv::ctl
