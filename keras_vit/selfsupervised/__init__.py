"""Functions on arrays for training without labels: targets, losses, masks, schedules and measures of collapse."""

from keras_vit.selfsupervised.feature_losses import (
    feature_loss as feature_loss,
)
from keras_vit.selfsupervised.feature_losses import (
    gram_loss as gram_loss,
)
from keras_vit.selfsupervised.feature_losses import (
    ijepa_loss as ijepa_loss,
)
from keras_vit.selfsupervised.feature_losses import (
    queue_relation_loss as queue_relation_loss,
)
from keras_vit.selfsupervised.feature_losses import (
    relation_loss as relation_loss,
)
from keras_vit.selfsupervised.masking import (
    block_masks as block_masks,
)
from keras_vit.selfsupervised.masking import (
    mae_loss as mae_loss,
)
from keras_vit.selfsupervised.masking import (
    random_masking as random_masking,
)
from keras_vit.selfsupervised.masking import (
    simmim_loss as simmim_loss,
)
from keras_vit.selfsupervised.measures import (
    knn_hits as knn_hits,
)
from keras_vit.selfsupervised.measures import (
    rank_me as rank_me,
)
from keras_vit.selfsupervised.measures import (
    spread as spread,
)
from keras_vit.selfsupervised.measures import (
    standardizer as standardizer,
)
from keras_vit.selfsupervised.measures import (
    target_entropies as target_entropies,
)
from keras_vit.selfsupervised.measures import (
    twin_hits as twin_hits,
)
from keras_vit.selfsupervised.schedules import (
    cosine_values as cosine_values,
)
from keras_vit.selfsupervised.schedules import (
    linear_cosine_values as linear_cosine_values,
)
from keras_vit.selfsupervised.self_distillation import (
    class_loss as class_loss,
)
from keras_vit.selfsupervised.self_distillation import (
    dino_loss as dino_loss,
)
from keras_vit.selfsupervised.self_distillation import (
    ibot_loss as ibot_loss,
)
from keras_vit.selfsupervised.self_distillation import (
    koleo_loss as koleo_loss,
)
from keras_vit.selfsupervised.self_distillation import (
    moving_average as moving_average,
)
from keras_vit.selfsupervised.self_distillation import (
    sinkhorn_knopp as sinkhorn_knopp,
)
from keras_vit.selfsupervised.self_distillation import (
    softmax_centered as softmax_centered,
)
from keras_vit.selfsupervised.self_distillation import (
    updated_center as updated_center,
)
from keras_vit.selfsupervised.views import (
    lejepa_loss as lejepa_loss,
)
from keras_vit.selfsupervised.views import (
    sigreg as sigreg,
)
