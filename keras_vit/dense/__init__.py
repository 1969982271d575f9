"""Functions on arrays for masks, depths, boxes, points and anomalies: resizes, windows, losses, metrics, readers."""

from keras_vit.dense.anomalies import (
    au_pro as au_pro,
)
from keras_vit.dense.anomalies import (
    auroc as auroc,
)
from keras_vit.dense.anomalies import (
    greedy_coreset as greedy_coreset,
)
from keras_vit.dense.depth import (
    DepthMetric as DepthMetric,
)
from keras_vit.dense.depth import (
    align_depth as align_depth,
)
from keras_vit.dense.depth import (
    depth_crop as depth_crop,
)
from keras_vit.dense.depth import (
    depth_from_bins as depth_from_bins,
)
from keras_vit.dense.depth import (
    depth_metrics as depth_metrics,
)
from keras_vit.dense.losses import (
    CrossEntropy as CrossEntropy,
)
from keras_vit.dense.losses import (
    Dice as Dice,
)
from keras_vit.dense.losses import (
    GradientLoss as GradientLoss,
)
from keras_vit.dense.losses import (
    SigLoss as SigLoss,
)
from keras_vit.dense.losses import (
    SiLogLoss as SiLogLoss,
)
from keras_vit.dense.losses import (
    cross_entropy as cross_entropy,
)
from keras_vit.dense.losses import (
    dice as dice,
)
from keras_vit.dense.losses import (
    gradient_loss as gradient_loss,
)
from keras_vit.dense.losses import (
    mask_cross_entropy as mask_cross_entropy,
)
from keras_vit.dense.losses import (
    mask_dice as mask_dice,
)
from keras_vit.dense.losses import (
    sig_loss as sig_loss,
)
from keras_vit.dense.losses import (
    silog_loss as silog_loss,
)
from keras_vit.dense.maps import (
    adaptive_pool as adaptive_pool,
)
from keras_vit.dense.maps import (
    lower_bound_size as lower_bound_size,
)
from keras_vit.dense.maps import (
    merge_windows as merge_windows,
)
from keras_vit.dense.maps import (
    minimal_size as minimal_size,
)
from keras_vit.dense.maps import (
    pad_to_multiple as pad_to_multiple,
)
from keras_vit.dense.maps import (
    resize as resize,
)
from keras_vit.dense.maps import (
    windows as windows,
)
from keras_vit.dense.masks import (
    SegmentationIoU as SegmentationIoU,
)
from keras_vit.dense.masks import (
    SegmentationScores as SegmentationScores,
)
from keras_vit.dense.masks import (
    map_labels as map_labels,
)
from keras_vit.dense.masks import (
    read_mask as read_mask,
)
from keras_vit.dense.masks import (
    segmentation_scores as segmentation_scores,
)
from keras_vit.dense.matching import (
    MaskClassification as MaskClassification,
)
from keras_vit.dense.matching import (
    hungarian_matching as hungarian_matching,
)
from keras_vit.dense.matching import (
    mask_classification_loss as mask_classification_loss,
)
from keras_vit.dense.queries import (
    boxes as boxes,
)
from keras_vit.dense.queries import (
    instances as instances,
)
from keras_vit.dense.queries import (
    keypoints as keypoints,
)
from keras_vit.dense.queries import (
    mutual_matches as mutual_matches,
)
from keras_vit.dense.queries import (
    panoptic as panoptic,
)
from keras_vit.dense.queries import (
    propagate_labels as propagate_labels,
)
from keras_vit.dense.queries import (
    semantic as semantic,
)
