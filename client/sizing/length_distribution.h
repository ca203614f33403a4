// How long the prompts are that a system serves.

#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace ckv {

// A value type of some 100 KB. Thread-safe after Create.
class LengthDistribution {
 public:
  static constexpr size_t kBinCountMax = 1 << 20;
  static constexpr double kTokensMax = 1e9;

  // Lengths above `from`, up to `to`, all equally probable.
  struct Bin {
    double from = 0, to = 0;
    double weight = 0;
  };
  // The logarithm of a length is normal, and the length is within limits.
  struct LogNormal {
    double mu = 0, sigma = 1;  // mean and deviation of the natural logarithm
    double tokens_min = 1, tokens_max = 1;
  };

  //   InvalidArgument     sigma or a limit is not positive and finite, or the limits are not in
  //                       order, or almost no length is within them. Names the field.
  static absl::StatusOr<LengthDistribution> Create(const LogNormal& shape);
  // Bins in ascending order that do not overlap; gaps have no lengths. Weights are relative.
  //   InvalidArgument     there is no bin or no weight, or a bin is wrong: "[3].from: ...".
  static absl::StatusOr<LengthDistribution> Create(const std::vector<Bin>& bins);
  // The lengths of a trace, in any order, in whole tokens.
  //   InvalidArgument     there is none, or one is not within 1 and kTokensMax: "[3]: ...".
  static absl::StatusOr<LengthDistribution> OfLengths(std::vector<double> lengths);

  double tokens_min() const { return bins_.front().from; }
  double tokens_max() const { return bins_.back().to; }
  double Mean() const { return sum_.back(); }
  // Returns the length that a share of `share` of the requests does not exceed.
  double Quantile(double share) const;

  // Returns the share of requests that are longer than `tokens`.
  double ShareAbove(double tokens) const;
  // Returns the mean length of the requests that are longer, or not longer. If there is none, it
  // returns `tokens`.
  double MeanAbove(double tokens) const;
  double MeanUpTo(double tokens) const;
  // Returns the mean of `of` over the requests longer than `from` that are not longer than `to`. 0
  // if there is none.
  double MeanOf(absl::FunctionRef<double(double tokens)> of, double from, double to) const;

 private:
  explicit LengthDistribution(std::vector<Bin> bins);
  struct UpTo {
    double share = 0, sum = 0;
  };
  UpTo At(double tokens) const;

  std::vector<Bin> bins_;            // weights sum to 1
  std::vector<double> share_, sum_;  // sums up to each end: the weights; weight times length
};

}  // namespace ckv
