#include "client/ctl/top/top_view.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "proto/convert.h"

namespace ckv::ctl {
namespace {

// The most names in DescribeReply.hottest. The sum of the tenants' corpora is one more entry.
constexpr size_t kHottestNamedMax = 64;

// The same incarnation of a member in the previous sample, if it answered there.
const MemberReport* FindBefore(const TopSample* before, const MemberReport& member) {
  if (before == nullptr) return nullptr;
  const auto at =
      std::find_if(before->members.begin(), before->members.end(), [&](const MemberReport& old) {
        return old.member.id == member.member.id && old.member.epoch == member.member.epoch;
      });
  return at == before->members.end() || !at->status.ok() ? nullptr : &*at;
}

template <typename Reply>
LatencyCounts CountsOf(const Reply& reply, std::string_view of) {
  for (const v1::Latency& latency : reply.latency())
    if (latency.of() == of) return FromProto(latency);
  return {};
}

LatencyCounts Less(LatencyCounts now, const LatencyCounts& before) {
  for (size_t i = 0; i < now.counts.size(); ++i)
    now.counts[i] -= std::min(now.counts[i], before.counts[i]);
  now.sum_ns -= std::min(now.sum_ns, before.sum_ns);
  return now;
}

// Differences between two samples, for one member. A member that the previous sample lacks has
// none: its counters cover its whole incarnation, not the time between the samples.
class Rates {
 public:
  Rates(std::optional<double> seconds, bool has_before)
      : seconds_(has_before ? seconds : std::nullopt), of_a_life_(seconds && !has_before) {}
  PerSecond Of(uint64_t now, uint64_t before) const {
    if (!seconds_) return std::nullopt;
    return now < before ? 0 : static_cast<double>(now - before) / *seconds_;
  }
  // With one sample only, all durations since the member's start.
  LatencyCounts Of(const LatencyCounts& now, const LatencyCounts& before) const {
    return of_a_life_ ? LatencyCounts{} : Less(now, before);
  }

 private:
  const std::optional<double> seconds_;
  const bool of_a_life_;
};

void AddTo(LatencyCounts& sum, const LatencyCounts& more) {
  for (size_t i = 0; i < sum.counts.size(); ++i) sum.counts[i] += more.counts[i];
  sum.sum_ns += more.sum_ns;
}

void AddTo(PerSecond& sum, PerSecond more) {
  if (more) sum = sum.value_or(0) + *more;
}

// Adds each of a member's times to those of the other members.
template <typename Reply>
void AddTimes(const Reply& now, const Reply* before, const Rates& rates,
              std::vector<TopTime>& times) {
  for (const v1::Latency& latency : now.latency()) {
    auto at = std::find_if(times.begin(), times.end(),
                           [&](const TopTime& time) { return time.of == latency.of(); });
    if (at == times.end()) {
      times.push_back({latency.of(), std::nullopt, {}});
      at = times.end() - 1;
    }
    const LatencyCounts all = FromProto(latency);
    const LatencyCounts old = before == nullptr ? LatencyCounts{} : CountsOf(*before, latency.of());
    AddTo(at->counts, rates.Of(all, old));
    AddTo(at->rate, rates.Of(all.total(), old.total()));
  }
}

TopHolder HolderOf(const MemberReport& now, const MemberReport* before, const Rates& rates) {
  static const v1::StatsReply kNothing;
  const v1::StatsReply& s = now.stats;
  const v1::StatsReply& old = before == nullptr ? kNothing : before->stats;
  TopHolder holder;
  holder.name = now.member.id.name;
  holder.address = now.member.control_address;
  holder.kernel_target = s.kernel_target();
  holder.requests = rates.Of(s.request_count(), old.request_count());
  holder.query_rows = rates.Of(s.query_row_count(), old.query_row_count());
  holder.errors = rates.Of(s.error_count(), old.error_count());
  holder.refused = rates.Of(s.refused_count(), old.refused_count());
  holder.bytes_in = rates.Of(s.bytes_in(), old.bytes_in());
  holder.bytes_out = rates.Of(s.bytes_out(), old.bytes_out());
  if (const PerSecond busy_ns = rates.Of(s.compute_ns(), old.compute_ns()))
    holder.busy = *busy_ns / 1e9;
  holder.waiting_count = s.waiting_count();
  holder.session_count = s.session_count();
  holder.chunk_count = s.chunk_count();
  holder.used_bytes = s.used_bytes();
  holder.capacity_bytes = s.capacity_bytes();
  holder.wait = rates.Of(CountsOf(s, "wait"), CountsOf(old, "wait"));
  holder.kernel = rates.Of(CountsOf(s, "kernel"), CountsOf(old, "kernel"));
  return holder;
}

TopRequester RequesterOf(const MemberReport& now, const MemberReport* before, const Rates& rates) {
  static const v1::DescribeReply kNothing;
  const v1::DescribeReply& d = now.description;
  const v1::DescribeReply& old = before == nullptr ? kNothing : before->description;
  const auto rate = [&](std::string_view of) {
    return rates.Of(CountsOf(d, of).total(), CountsOf(old, of).total());
  };
  TopRequester requester;
  requester.name = now.member.id.name;
  requester.address = now.member.control_address;
  requester.route = rate("route");
  requester.near = rate("near");
  requester.fetch = rate("fetch");
  requester.pull = rate("pull");
  requester.local = rate("local");
  requester.errors = rates.Of(d.error_count(), old.error_count());
  for (const std::string_view of : {"route", "near"})
    AddTo(requester.attends, rates.Of(CountsOf(d, of), CountsOf(old, of)));
  requester.near_bytes = d.near().bytes();
  requester.near_bytes_max = d.near().bytes_max();
  return requester;
}

using CorpusCalls = v1::DescribeReply::CorpusCalls;

// The counters of a corpus in the previous description. Returns nothing if the list there is full
// without the corpus: earlier calls are possible, and their number is unknown.
std::optional<CorpusCalls> CallsBefore(const v1::DescribeReply& before, const std::string& name) {
  size_t named_count = 0;
  for (const CorpusCalls& calls : before.hottest()) {
    if (calls.name() == name) return calls;
    if (!calls.name().empty()) ++named_count;
  }
  if (named_count >= kHottestNamedMax && !name.empty()) return std::nullopt;
  return CorpusCalls();
}

void AddCorpora(const v1::DescribeReply& now, const v1::DescribeReply* before, const Rates& rates,
                std::vector<TopCorpus>& corpora) {
  for (const CorpusCalls& calls : now.hottest()) {
    auto at = std::find_if(corpora.begin(), corpora.end(),
                           [&](const TopCorpus& corpus) { return corpus.name == calls.name(); });
    if (at == corpora.end()) {
      corpora.push_back({calls.name(), std::nullopt, std::nullopt, 0});
      at = corpora.end() - 1;
    }
    at->call_count += calls.call_count();
    if (before == nullptr) continue;
    const std::optional<CorpusCalls> old = CallsBefore(*before, calls.name());
    if (!old) continue;
    AddTo(at->calls, rates.Of(calls.call_count(), old->call_count()));
    AddTo(at->query_rows, rates.Of(calls.query_row_count(), old->query_row_count()));
  }
}

void AddDecisions(const v1::DescribeReply& now, const v1::DescribeReply* before, const Rates& rates,
                  std::vector<TopDecision>& decisions) {
  for (const v1::DescribeReply::Near::Decisions& made : now.near().decisions()) {
    const auto same = [&](const auto& primitive, const auto& reason) {
      return primitive == made.primitive() && reason == made.reason();
    };
    auto at = std::find_if(decisions.begin(), decisions.end(), [&](const TopDecision& decision) {
      return same(decision.primitive, decision.reason);
    });
    if (at == decisions.end()) {
      decisions.push_back({made.primitive(), made.reason(), std::nullopt, 0});
      at = decisions.end() - 1;
    }
    uint64_t old = 0;
    if (before != nullptr) {
      for (const auto& one : before->near().decisions())
        if (same(one.primitive(), one.reason())) old = one.count();
    }
    at->count += made.count();
    AddTo(at->rate, rates.Of(made.count(), old));
  }
}

// The larger of `key` first; those of the same, which two samples must not swap, by name.
template <typename Row, typename Key>
void SortByKey(std::vector<Row>& rows, Key key) {
  std::sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) { return key(a) < key(b); });
}

std::vector<TopProblem> ProblemsOf(const TopSample& now) {
  std::vector<TopProblem> problems;
  for (const Finding& finding : now.findings) {
    problems.push_back(
        {std::string(CodeName(finding.code)), Printable(finding.subject), Printable(finding.what)});
  }
  return problems;
}

}  // namespace

TopView MakeTopView(const TopSample* before, const TopSample& now) {
  TopView view;
  view.directory = now.directory;
  if (before != nullptr && now.at <= before->at) before = nullptr;
  if (before != nullptr) view.seconds = static_cast<double>((now.at - before->at).count()) / 1e9;
  view.problems = ProblemsOf(now);
  std::vector<TopTime> holder_times;
  for (const MemberReport& member : now.members) {
    if (!member.status.ok()) continue;
    const MemberReport* const old = FindBefore(before, member);
    const Rates rates(view.seconds, old != nullptr);
    if (member.member.role == MemberRole::kHolder) {
      view.holders.push_back(HolderOf(member, old, rates));
      AddTimes(member.stats, old == nullptr ? nullptr : &old->stats, rates, holder_times);
      continue;
    }
    const v1::DescribeReply* const then = old == nullptr ? nullptr : &old->description;
    view.requesters.push_back(RequesterOf(member, old, rates));
    AddTimes(member.description, then, rates, view.times);
    AddCorpora(member.description, then, rates, view.corpora);
    AddDecisions(member.description, then, rates, view.decisions);
  }
  view.times.insert(view.times.end(), holder_times.begin(), holder_times.end());
  SortByKey(view.holders, [](const TopHolder& h) {
    return std::pair(-h.busy.value_or(0), std::string_view(h.name));
  });
  SortByKey(view.requesters, [](const TopRequester& r) {
    return std::pair(-(r.route.value_or(0) + r.near.value_or(0)), std::string_view(r.name));
  });
  SortByKey(view.corpora, [](const TopCorpus& c) {
    return std::tuple(-c.calls.value_or(0), -static_cast<double>(c.call_count),
                      std::string_view(c.name));
  });
  SortByKey(view.decisions, [](const TopDecision& d) {
    return std::tuple(-d.rate.value_or(0), -static_cast<double>(d.count),
                      std::string_view(d.primitive), std::string_view(d.reason));
  });
  return view;
}

}  // namespace ckv::ctl
