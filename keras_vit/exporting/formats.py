"""What can be asked of an export and of an engine, without Keras, so that a command line knows it too."""

FORMATS = ("saved_model", "onnx", "litert", "openvino")
PRECISIONS = ("float32", "bfloat16", "float16", "int8")
ENGINES = ("auto", "tensorflow", "xla", "openvino", "onnxruntime")
ENGINE_PRECISIONS = ("float32", "bfloat16", "int8")
ACTIVATIONS = ("softmax", "sigmoid")  # from logits to scores
MAX_BYTES = 8 * 2**20  # of one image file
MAX_PIXELS = 12 * 2**20  # of one image; a phone takes 4032 x 3024, a few more would be 100 MB above the base
MAX_BATCH = 128  # images of one call; 128 of 224 x 224 are 77 MB as float32
OPSET = 18  # of ONNX
