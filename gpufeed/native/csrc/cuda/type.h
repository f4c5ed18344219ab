// The types that the kernels take, without torch's headers.
#pragma once

namespace gpufeed {

enum class Type : int { float32, float16, bfloat16 };

}  // namespace gpufeed
