// The two forms of GELU: x times the normal distribution's cumulative function (erf), and its tanh approximation.
// Source: D. Hendrycks, K. Gimpel, Gaussian Error Linear Units, 2016, arXiv:1606.08415.
#pragma once

namespace gpufeed {

enum class Form : int { erf, tanh };

}  // namespace gpufeed
